"""`python -m bench.faults.wrong_passes`: attempts to get a pass from a training that is not the reference's.

Each fault is in one part of a training, as small as its kind allows, and is planted twice: on an equal machine where a
variable differs that changes no bit, and on a different instruction set. The causes below were written before any run.
`bench/results/wrong-passes.json` holds every attempt with its verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.faults.bench import two_cores
from bench.faults.benign_pairs import HARMLESS, PARTS, PRECISIONS, spec_of
from bench.faults.machine import commit, machine
from bench.faults.trainer import Side, Trainer
from bench.faults.world import World
from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.spec import read_spec, write_spec

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "wrong-passes.json"

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
    "variable": {"NCCL_IB_TIMEOUT": "22", **HARMLESS}, "isa": {"ATEN_CPU_CAPABILITY": "avx2"},
}  # fmt: skip


def _spec(world: World, setting: str) -> Path:
    """Write the spec of a setting: a probe whose portable leg has late steps as by default, `speed`, and a curve."""
    precision = setting if setting in PRECISIONS else "bf16"
    plain = read_spec(spec_of(world, precision))
    if setting == "packed":
        texts = read_spec(world.spec("mlm", 1))
        # Room for two texts in a row: without it nothing is packed, and no fault of packing acts.
        data = texts.data.replace(sequence_length=2 * texts.data.sequence_length)
        plain = plain.replace(task=texts.task, model=texts.model, data=data)
    keys = _SPEED.get(setting)
    assert plain.probe is not None
    assert plain.speed is not None
    spec = plain.replace(
        workload=f"attempts-{setting}", probe=plain.probe.replace(steps=8, portable_steps=4),
        speed=plain.speed.replace(**keys or {}), learn=None if keys else plain.learn,
    )  # fmt: skip
    path = world.root / "specs" / f"attempts-{setting}.json"
    write_spec(spec, path)
    return path


def _judged(reference: LoadedRecord, candidate: LoadedRecord | None) -> dict[str, Any]:
    if candidate is None:
        return {"record": "none", "verdict": "no record", "named": [], "at": ""}
    judgement = compare(reference, candidate, throughput=False)
    at = judgement.first_divergence
    return {
        "record": candidate.record.exit.status, "verdict": judgement.verdict,
        "named": [cause.code for cause in judgement.causes],
        "at": f"{at.stage} {at.step} {at.at}" if at else "",
        "sure": [cause.sure for cause in judgement.causes],
        "why": [sentence_of(cause.why)[:200] for cause in judgement.causes],
        "findings": [
            f"{found.check}: {sentence_of(found.detail)}"[:200]
            for found in judgement.findings
            if found.outcome != "pass"
        ],
    }  # fmt: skip


class _Attempts:
    """Trainings on two cores, each judged and written as soon as it ends."""

    def __init__(self, root: Path, known: list[dict[str, Any]], replaced: list[dict[str, Any]], until: float) -> None:
        self._replaced = replaced
        self._root, self._until, self._lock = root, until, threading.Lock()
        self._world = World(root / "world")
        self.known = known
        self._waiting = planned(known)
        settings = dict.fromkeys(ATTEMPTS[fault][2] for fault, _ in self._waiting)
        self._specs = {setting: _spec(self._world, setting) for setting in settings}

    def run(self) -> None:
        threads = [threading.Thread(target=self._drive, args=(core,)) for core in two_cores()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, core: int) -> None:
        references: dict[str, LoadedRecord] = {}
        with Trainer(core, self._root / f"work-{core}") as trainer:
            while time.monotonic() < self._until:
                with self._lock:
                    if not self._waiting:
                        return
                    fault, place = self._waiting.pop(0)
                spec = self._specs[ATTEMPTS[fault][2]]
                if spec.stem not in references:
                    found = trainer.train(Side(spec, self._world.data, "here"), f"reference-{spec.stem}")
                    if found is None or found.record.exit.status != "completed":
                        log = (trainer.folder / f"reference-{spec.stem}.log").read_text(errors="replace")[-2000:]
                        raise RuntimeError(f"the reference of {spec.stem} did not complete:\n{log}")
                    references[spec.stem] = found
                side = Side(spec, self._world.data, "here", _injector(fault), PLACES[place])
                judged = _judged(references[spec.stem], trainer.train(side, f"{fault}-{place}".replace("_", "-")))
                self._keep(fault, place, judged)

    def _keep(self, fault: str, place: str, judged: dict[str, Any]) -> None:
        cause, at, setting = ATTEMPTS[fault]
        with self._lock:
            self.known.append(
                {"fault": fault, "place": place, "setting": setting, "cause": cause, "expected_at": at, **judged}
            )
            sys.stderr.write(json.dumps(self.known[-1]) + "\n")
            _write(self.known, self._replaced)


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


def _write(known: list[dict[str, Any]], replaced: list[dict[str, Any]]) -> None:
    def names(chosen: Callable[[dict[str, Any]], bool]) -> list[str]:
        return [f"{each['fault']} {each['place']}" for each in known if chosen(each)]

    document = {
        "command": "python -m bench.faults.wrong_passes", "machine": machine(), "commit": commit(),
        "attempts": len(known), "planned": len(ATTEMPTS) * len(PLACES),
        "wrong_passes": names(lambda each: each["verdict"] == "pass"),
        "no_drift": names(lambda each: each["verdict"] not in {"pass", "drift"}),
        "right": sum(map(is_right, known)),
        "not_right": names(lambda each: each["verdict"] == "drift" and not is_right(each)),
        "cells": known, "replaced": replaced,
    }  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Make the attempts that have no result yet, within the time limit; return 1 if one passed."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.wrong_passes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=36000.0, help="begin no attempt after this")
    parser.add_argument("--again", nargs="*", default=[], help="faults whose results are made once more")
    args = parser.parse_args()
    document = json.loads(RESULT.read_bytes()) if RESULT.is_file() else {"cells": []}
    replaced = [each for each in document["cells"] if each["fault"] in args.again]
    known = [each for each in document["cells"] if each["fault"] not in args.again]
    with tempfile.TemporaryDirectory(prefix="plumbline-attempts-") as folder:
        earlier = [*document.get("replaced", []), *replaced]
        attempts = _Attempts(Path(folder), known, earlier, time.monotonic() + args.seconds)
        attempts.run()
    passed = [each for each in attempts.known if each["verdict"] == "pass"]
    sys.stdout.write(f"{len(attempts.known)} attempts, {len(passed)} passed\n")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
