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
from pathlib import Path
from typing import Any

from bench.faults.bench import two_cores
from bench.faults.benign_pairs import spec_of
from bench.faults.machine import commit, machine
from bench.faults.trainer import Side, Trainer
from bench.faults.world import World
from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "bench" / "results" / "wrong-passes.json"

CAUSES = {
    "learn_without_decay": "optimizer", "learn_with_other_beta2": "optimizer", "learn_with_tanh_gelu": "operator",
    "learn_with_softmax_in_bf16": "operator", "learn_without_clipping": "gradient", "learn_with_frozen_masks": "rng",
    "learn_with_reversed_labels": "data.labels", "learn_with_hidden_tokens": "operator",
    "learn_evaluated_in_bf16": "evaluation", "speed_without_padding_mask": "operator",
    "speed_without_decay": "optimizer", "speed_with_halved_norm": "operator", "speed_with_relu": "operator",
    "speed_with_scaled_loss": "loss", "speed_with_half_of_the_rows": "operator", "probe_with_late_smoothing": "loss",
    "probe_with_late_scale": "operator", "probe_with_other_eps": "operator", "probe_with_larger_gradient": "gradient",
    "probe_with_other_adam_eps": "optimizer", "probe_decays_biases": "optimizer",
}  # fmt: skip
PLACES: dict[str, dict[str, str]] = {"variable": {"NCCL_IB_TIMEOUT": "22"}, "isa": {"ATEN_CPU_CAPABILITY": "avx2"}}


def _judged(reference: LoadedRecord, candidate: LoadedRecord | None) -> dict[str, Any]:
    if candidate is None:
        return {"verdict": "no record"}
    judgement = compare(reference, candidate, throughput=False)
    at = judgement.first_divergence
    return {
        "verdict": judgement.verdict, "named": [cause.code for cause in judgement.causes],
        "at": f"{at.stage} {at.step} {at.at}" if at else "",
        "why": [sentence_of(cause.why)[:200] for cause in judgement.causes],
    }  # fmt: skip


class _Attempts:
    """Trainings on two cores, each judged and written as soon as it ends."""

    def __init__(self, root: Path, known: list[dict[str, Any]], until: float) -> None:
        self._root, self._until, self._lock = root, until, threading.Lock()
        self._world = World(root / "world")
        self._spec = spec_of(self._world, "bf16")
        self.known = known
        done = {(each["fault"], each["place"]) for each in known}
        self._waiting = [(fault, place) for fault in CAUSES for place in PLACES if (fault, place) not in done]

    def run(self) -> None:
        threads = [threading.Thread(target=self._drive, args=(core,)) for core in two_cores()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, core: int) -> None:
        with Trainer(core, self._root / f"work-{core}") as trainer:
            reference = trainer.train(Side(self._spec, self._world.data, "here"), "reference")
            if reference is None:
                raise RuntimeError("the reference left no record")
            while time.monotonic() < self._until:
                with self._lock:
                    if not self._waiting:
                        return
                    fault, place = self._waiting.pop(0)
                side = Side(self._spec, self._world.data, "here", f"attempts.{fault}", PLACES[place])
                judged = _judged(reference, trainer.train(side, f"{fault}-{place}".replace("_", "-")))
                with self._lock:
                    self.known.append({"fault": fault, "place": place, "cause": CAUSES[fault], **judged})
                    sys.stderr.write(json.dumps(self.known[-1]) + "\n")
                    _write(self.known)


def _write(known: list[dict[str, Any]]) -> None:
    passed = [f"{each['fault']} {each['place']}" for each in known if each["verdict"] == "pass"]
    document = {
        "command": "python -m bench.faults.wrong_passes", "machine": machine(), "commit": commit(),
        "attempts": len(known), "planned": len(CAUSES) * len(PLACES), "wrong_passes": passed,
        "right": sum(each["cause"] in each.get("named", [])[:1] for each in known), "cells": known,
    }  # fmt: skip
    RESULT.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Make the attempts that have no result yet, within the time limit; return 1 if one passed."""
    parser = argparse.ArgumentParser(prog="python -m bench.faults.wrong_passes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=36000.0, help="begin no attempt after this")
    args = parser.parse_args()
    known = json.loads(RESULT.read_bytes())["cells"] if RESULT.is_file() else []
    with tempfile.TemporaryDirectory(prefix="plumbline-attempts-") as folder:
        attempts = _Attempts(Path(folder), known, time.monotonic() + args.seconds)
        attempts.run()
    passed = [each for each in attempts.known if each["verdict"] == "pass"]
    sys.stdout.write(f"{len(attempts.known)} attempts, {len(passed)} passed\n")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
