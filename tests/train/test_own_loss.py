"""A task with a loss of its own is judged by its own definition."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.nn import functional

from plumbline.judge import compare
from plumbline.records import load_record
from plumbline.schema.verdict import Judgement
from plumbline.train.tasks import Task, sequence_classification
from tests.train.conftest import Trained, Workshop

_PATCH = """
import sys
from plumbline.train.__main__ import main
from plumbline.train.tasks import sequence_classification
from tests.train.test_own_loss import Smoothed
sequence_classification.TASK = Smoothed(float(sys.argv.pop(1)))
raise SystemExit(main())
"""


class Smoothed(type(sequence_classification.TASK)):  # type: ignore[misc]
    """Trains with labels smoothed by `trained`, and defines its loss with 0.1."""

    def __init__(self, trained: float) -> None:
        self._trained = trained

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs.logits, labels, label_smoothing=self._trained)

    def term_losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        every = [Task.term_losses(self, scores, torch.full_like(labels, each)) for each in (0, 1)]
        return 0.9 * Task.term_losses(self, scores, labels) + 0.1 * sum(every) / 2


def _trained(workshop: Workshop, smoothing: float, **variables: str) -> Trained:
    out = workshop.out()
    command = workshop.command(workshop.spec(speed={"steps": 10}, learn={"steps": 8, "evaluate_every": 4}), out)
    place = command.index("plumbline.train")
    program = [sys.executable, "-c", _PATCH, str(smoothing), *command[place + 1 :]]
    subprocess.run(program, check=True, env=os.environ | variables, timeout=120)
    return Trained(out, load_record(out).record)


def _judged(reference: Trained, candidate: Trained) -> Judgement:
    return compare(load_record(reference.folder), load_record(candidate.folder), throughput=False)


@pytest.mark.long
def test_a_tasks_own_loss_is_honest_by_its_own_definition_and_wrong_by_another(workshop: Workshop) -> None:
    """The wrong one is a `loss` beside the honest one, beside itself, and behind another instruction set."""
    honest, wrong = _trained(workshop, 0.1), _trained(workshop, 0.12)
    elsewhere = _trained(workshop, 0.12, ATEN_CPU_CAPABILITY="avx2")
    assert _judged(honest, honest).verdict == "pass"
    assert _judged(honest, _trained(workshop, 0.1, ATEN_CPU_CAPABILITY="avx2")).verdict == "pass"
    for reference, candidate in ((honest, wrong), (wrong, wrong), (honest, elsewhere)):
        judgement = _judged(reference, candidate)
        assert judgement.verdict == "drift"
        assert judgement.causes[0].code == "loss"
