"""Reruns of a loop with the reference's value imposed: what disappears is confirmed, and what stays is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from plumbline.judge import compare, confirm
from plumbline.judge.confirmation import Request
from plumbline.night.experiments.build import write_bundle
from plumbline.records import LoadedRecord, load_record
from plumbline.records.part_sizes import check_parts
from plumbline.schema.experiment import EXPERIMENT_NAME
from plumbline.schema.suite import Gates
from plumbline.train.capture import capture

from .loops import Halved

STEPS, ROWS, WIDTH = 8, 16, 8


class Scaled(nn.Module):
    """A module that draws, and so is not proven; a fault is one of the training's own format."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.weight = fault, nn.Parameter(torch.ones(WIDTH))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if value.dtype == torch.float32:  # a kernel of this format
            value = value * (1.001 if self.fault.startswith("output") else 1.0)
            value = Halved.apply(value) if self.fault.startswith("gradient") else value
        return value * self.weight + 0.01 * torch.rand_like(value)


class OwnRate(torch.optim.SGD):
    """An optimizer that changes its own rate while it updates."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["lr"] *= 0.5
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 2


FAULTS: dict[str, tuple[str, bool]] = {
    "input": ("data.content", True), "input and label": ("data.content", False),
    "weights": ("weights.init", True), "weights at each step": ("weights.init", False),
    "generator": ("rng", True), "generator at each step": ("rng", False),
    "rate": ("schedule", True), "rate within the update": ("schedule", False),
    "output": ("operator", True), "output and label": ("operator", False),
    "gradient": ("gradient", True), "gradient and label": ("gradient", False),
}  # fmt: skip
"""Cause that is named, and whether imposing the reference's value removes the whole difference."""

LABELS = {"input and label": 2, "output and label": 0, "gradient and label": 1}
"""Step at which a second fault turns the labels, which no hook sees."""


def train(folder: Path, fault: str, experiment: Path | None = None) -> LoadedRecord:
    os.environ["PLUMBLINE_EXPERIMENT"] = str(experiment or "")
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, WIDTH), Scaled(fault), nn.Dropout(0.1), nn.Linear(WIDTH, 2))
    if fault.startswith("weights"):
        with torch.no_grad():
            model[0].weight[0] += 0.01
    if fault.startswith("generator"):
        torch.manual_seed(6)
    kind = OwnRate if fault == "rate within the update" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.1 if not fault.startswith("rate") else 0.05)
    data = torch.Generator().manual_seed(1)
    with capture(folder, model, optimizer, steps=STEPS, seed=3) as run:
        for step in range(STEPS):
            values = torch.randn(ROWS, 4, generator=data)
            labels = (values[:, 0] > 0).long()
            if fault.startswith("input") and step == 2:
                values = values * 1.01
            if step == LABELS.get(fault):
                labels = 1 - labels
            if fault == "weights at each step":
                with torch.no_grad():
                    model[0].weight[0] += 0.01
            if fault == "generator at each step":
                torch.manual_seed(step)
            loss = functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.step(loss=loss)
    found = load_record(folder)
    check_parts(found.record, fault)
    return replace(found, record=found.record.replace(record_id=folder.name))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> LoadedRecord:
    return train(tmp_path_factory.mktemp("reruns") / "reference", "")


@contextmanager
def own_variables() -> Iterator[None]:
    before = os.environ.get("PLUMBLINE_EXPERIMENT")
    try:
        yield
    finally:
        os.environ["PLUMBLINE_EXPERIMENT"] = before or ""


def rerun(request: Request, known: dict[str, LoadedRecord], folder: Path, fault: str) -> LoadedRecord:
    """Train as a worker does that received the request."""
    bundle = write_bundle(request, known, folder / "bundle")
    (bundle / EXPERIMENT_NAME).write_text(request.experiment.model_dump_json())
    return train(folder / f"{folder.name}-run", "" if request.runs_on == "reference" else fault, bundle)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_cause_is_confirmed_if_imposing_its_value_removes_the_difference(
    reference: LoadedRecord, tmp_path: Path, fault: str
) -> None:
    code, is_removed = FAULTS[fault]
    with own_variables():
        candidate = train(tmp_path / "candidate", fault)
        judgement = compare(reference, candidate, Gates(), throughput=False)
        assert [cause.code for cause in judgement.causes][:1] == [code]
        state = confirm.begin(reference, candidate, judgement, 8)
        known = {"reference": reference, "candidate": candidate}
        while (request := confirm.next_request(state)) is not None:
            folder = tmp_path / f"experiment-{state.spent}"
            record = rerun(request, known, folder, fault)
            known[record.record.record_id] = record
            state = confirm.after_experiment(state, request, record)
    (named, *others) = state.settled
    assert named.code == code
    assert len(named.tried) > 1
    assert (named.sure == "confirmed" and not others and not state.pending) == is_removed
