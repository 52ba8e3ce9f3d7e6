"""`python -m bench.faults.wrong_passes`: attempts to get a pass from a training that is not the reference's.

Each fault is in one part of a training, as small as its kind allows, and is planted twice: on an equal machine where a
variable differs that changes no bit, and on a different instruction set. The causes below were written before any run.
`bench/results/wrong-passes.json` holds every attempt with its verdict.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from bench.faults.benign_pairs import HARMLESS, PARTS, PRECISIONS
from bench.faults.catalogue import OTHER_ISA
from bench.faults.production import all_parts
from bench.faults.results import FOLDER, read_cells, write_result
from bench.faults.trainer import Side, Trainer, on_cores
from bench.faults.world import LENGTH, World
from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of

RESULT = FOLDER / "wrong-passes.json"

ATTEMPTS: dict[str, tuple[str, str, str]] = {
    "learn_without_decay": ("optimizer", "", "bf16"), "learn_with_other_beta2": ("optimizer", "", "bf16"),
    "learn_with_tanh_gelu": ("operator", "intermediate", "bf16"),
    "learn_with_softmax_in_bf16": ("precision", "attention", "bf16"),
    "learn_without_clipping": ("gradient", "", "bf16"), "learn_with_frozen_masks": ("rng", "dropout", "bf16"),
    "learn_with_reversed_labels": ("data.labels", "", "bf16"), "learn_with_hidden_tokens": ("operator", "", "bf16"),
    "learn_with_class_weights": ("loss", "", "bf16"), "learn_with_frozen_encoder": ("gradient", "encoder", "bf16"),
    "learn_evaluated_in_bf16": ("evaluation", "", "fp32"),
    "learn_evaluated_without_padding": ("evaluation", "", "bf16"),
    "speed_without_padding_mask": ("operator", "attention", "bf16"), "speed_without_decay": ("optimizer", "", "bf16"),
    "speed_with_halved_norm": ("operator", "LayerNorm", "bf16"),
    "speed_with_relu": ("operator", "intermediate", "bf16"),
    "speed_with_scaled_loss": ("loss", "", "bf16"), "speed_with_half_of_the_rows": ("data.order", "", "bf16"),
    "probe_with_late_smoothing": ("loss", "", "bf16"), "probe_with_late_scale": ("operator", "attention", "bf16"),
    "probe_with_other_eps": ("operator", "LayerNorm", "bf16"), "probe_with_larger_gradient": ("gradient", "", "bf16"),
    "probe_with_other_adam_eps": ("optimizer", "", "bf16"), "probe_decays_biases": ("optimizer", "", "bf16"),
    "fused_without_momentum": ("optimizer", "", "bf16"), "fused_with_late_correction": ("optimizer", "", "bf16"),
    "foreach_with_other_momentum": ("optimizer", "", "foreach"), "sdpa_unscaled": ("operator", "attention", "bf16"),
    "sdpa_loses_a_head": ("operator", "attention", "bf16"),
    "sdpa_with_halved_backward": ("gradient", "attention", "bf16"),
    "autocast_rounds_the_loss": ("loss", "", "bf16"), "linear_loses_a_split": ("operator", "attention", "bf16"),
    "bias_gradient_of_half_of_the_tokens": ("gradient", "bias", "bf16"),
    "norm_without_its_tail": ("operator", "LayerNorm", "bf16"), "scaler_unscales_by_half": ("gradient", "", "fp16"),
    "scaler_skips_every_update": ("optimizer", "", "fp16"),
    "packed_texts_see_each_other": ("operator", "attention", "packed"),
    "packed_positions_run_on": ("operator", "embeddings", "packed"),
    "compiled_gelu_as_relu": ("operator", "", "compiled"), "compiled_norm_with_other_eps": ("operator", "", "compiled"),
}  # fmt: skip
"""Fault → its cause, a part of the place that must be named, and the settings that it is planted in."""
_SPEED: dict[str, dict[str, Any]] = {
    "foreach": {"fused_optimizer": False, "foreach_optimizer": True}, "packed": {"padding": "packed"},
    "compiled": {"compile": True},
}  # fmt: skip
"""Keys of `speed` beside the precision; settings with such keys have no curve."""
PLACES: dict[str, dict[str, str]] = {
    "variable": {"NCCL_IB_TIMEOUT": "22", **HARMLESS}, "isa": OTHER_ISA,
}  # fmt: skip


def _spec(world: World, setting: str) -> Path:
    """Write the spec of a setting: a probe whose windows have late steps as by default, `speed`, and a curve."""
    precision, keys = setting if setting in PRECISIONS else "bf16", _SPEED.get(setting, {})
    changes: dict[str, Any] = {"probe": {"steps": 8, "portable_steps": 4}, "speed": keys}
    if keys:
        changes["learn"] = None
    if setting == "packed":
        # Room for two texts in a row: without it nothing is packed, and no fault of packing acts.
        changes["data"] = {"sequence_length": 2 * LENGTH}
    base = all_parts(world, precision, "mlm" if setting == "packed" else "cls")
    return world.derived(f"attempts-{setting}", base, **changes)


def _judged(reference: LoadedRecord, candidate: LoadedRecord | None) -> dict[str, Any]:
    if candidate is None:
        return {"verdict": "no record", "named": [], "at": ""}
    judgement = compare(reference, candidate, throughput=False)
    at = judgement.first_divergence
    return {
        "verdict": judgement.verdict, "named": [cause.code for cause in judgement.causes],
        "at": f"{at.part} {at.stage} {at.step} {at.at}".strip() if at else "",
        "why": [sentence_of(cause.why)[:200] for cause in judgement.causes],
    }  # fmt: skip


class _Attempts:
    """Attempts so far, each written as soon as it is judged."""

    def __init__(self, root: Path, known: list[dict[str, Any]]) -> None:
        self._world, self.cells, self._lock = World(root / "world"), known, threading.Lock()
        self._specs = {setting: _spec(self._world, setting) for setting in {each[2] for each in ATTEMPTS.values()}}
        self._references: dict[tuple[int, str], LoadedRecord] = {}

    def attempt(self, trainer: Trainer, job: tuple[str, str]) -> None:
        """Train with a fault at a place, and judge it beside the trainer's own reference."""
        fault, place = job
        cause, at, setting = ATTEMPTS[fault]
        spec, key = self._specs[setting], (trainer.core, setting)
        if key not in self._references:
            clean = Side(spec, self._world.data, "here")
            self._references[key] = trainer.train_completed(clean, f"reference-{spec.stem}")
        side = Side(spec, self._world.data, "here", _injector(fault), PLACES[place])
        judged = _judged(self._references[key], trainer.train(side, f"{fault}-{place}".replace("_", "-")))
        with self._lock:
            self.cells.append(
                {"fault": fault, "place": place, "setting": setting, "cause": cause, "expected_at": at, **judged}
            )
            write_result(RESULT, "python -m bench.faults.wrong_passes", self.cells)


def planned(known: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return (fault, place) of the attempts without a result, one setting after the other."""
    done = {(each["fault"], each["place"]) for each in known}
    every = [(fault, place) for fault in ATTEMPTS for place in PLACES]
    return sorted((each for each in every if each not in done), key=lambda each: ATTEMPTS[each[0]][2])


def _injector(fault: str) -> str:
    part = fault.partition("_")[0]
    return f"{'attempts' if part in PARTS else 'production_attempts'}.{fault}"


def is_right(each: dict[str, Any]) -> bool:
    """Return whether an attempt is a drift whose first cause is the expected one, at the expected place."""
    return each["verdict"] == "drift" and each["named"][:1] == [each["cause"]] and each["expected_at"] in each["at"]


def main() -> int:
    """Make the attempts that have no result yet, within the time limit; return 1 if one passed."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.wrong_passes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no attempt after this")
    parser.add_argument("--again", nargs="*", default=[], metavar="FAULT", help="only these, also if they have results")
    args = parser.parse_args()
    known = [each for each in read_cells(RESULT) if each["fault"] not in args.again]
    jobs = [job for job in planned(known) if not args.again or job[0] in args.again]
    with tempfile.TemporaryDirectory(prefix="plumbline-attempts-") as folder:
        attempts = _Attempts(Path(folder), known)
        on_cores(Path(folder), jobs, attempts.attempt, seconds=args.seconds)
    num_passed = sum(each["verdict"] == "pass" for each in attempts.cells)
    sys.stdout.write(f"{len(attempts.cells)} attempts, {num_passed} passed\n")
    return 1 if num_passed else 0


if __name__ == "__main__":
    sys.exit(main())
