"""Trace of the learning curve: the probe's evidence of some of its steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plumbline.judge import compare
from plumbline.judge.confirm import Confirmation
from plumbline.judge.pair import Pair
from plumbline.judge.walk import walk
from plumbline.judge.whole import missing_evidence
from plumbline.night.experiments.build import write_bundle
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.experiment import Experiment
from plumbline.schema.spec import RunSpec
from plumbline.train import dropout as dropout_module
from plumbline.train import learn as learn_module
from plumbline.train.engine import Engine
from plumbline.train.trail import WeightsTrail
from tests.train.conftest import Trained, Workshop

STEPS = 10


def learning(workshop: Workshop, **changes: Any) -> RunSpec:
    """Return a spec with evaluations and checkpoints between the steps, in two micro-batches."""
    learn = {"steps": STEPS, "evaluate_every": 4, "checkpoint_every": 4, "evaluation_rows": 16, **changes}
    return workshop.spec(probe=None, learn=learn, optimizer={"accumulation_steps": 2})


def traced(workshop: Workshop, files: Mapping[str, Path] | None = None, **body: Any) -> Trained:
    bundle = workshop.out()
    bundle.mkdir()
    request = Experiment.model_validate({"experiment_id": "e", "part": "learn", "trace": 4, "steps": 8, **body})
    (bundle / "experiment.json").write_text(json.dumps(request.to_json()))
    for name, path in (files or {}).items():
        (bundle / name).write_bytes(path.read_bytes())
    return workshop.train(learning(workshop), experiment=bundle)


@pytest.fixture(scope="module")
def whole(workshop: Workshop) -> Trained:
    return workshop.train(learning(workshop))


@pytest.fixture(scope="module")
def window(workshop: Workshop) -> Trained:
    return traced(workshop)


def test_a_trace_leaves_the_curve_and_its_evaluations_as_they_are(whole: Trained, window: Trained) -> None:
    ours, theirs = whole.record.evidence.learn, window.record.evidence.learn
    assert theirs.losses == ours.losses[:8]
    assert theirs.evaluations == ours.evaluations[:2]
    assert (theirs.batches, theirs.rows, theirs.labels) == (ours.batches[:8], ours.rows[:8], ours.labels[:8])
    assert theirs.start_sha256 == ours.start_sha256
    assert len(set(ours.rows)) == len(ours.rows) == STEPS


def test_a_trace_has_the_evidence_of_a_probe_from_its_first_step_on(whole: Trained, window: Trained) -> None:
    probe, trace = window.record.evidence.probe, window.record.evidence.trace
    assert [step.step for step in probe.steps] == [0, 1, 2, 3]
    assert [step.loss for step in probe.steps] == pytest.approx(whole.record.evidence.learn.losses[4:8], rel=1e-12)
    assert {(tap.step, tap.stage) for tap in probe.taps} == {
        (step, stage) for step in range(4) for stage in ("forward", "gradient", "weight")
    }
    assert not list(missing_evidence(load_record(window.folder), "trace"))
    assert trace.first == 4
    assert len(trace.weights) == 9
    assert len(set(trace.weights)) == 9
    assert window.arrays("batches")["row_ids"].shape == (4, 8)
    assert set(window.arrays("batches")) == set(BATCH_FIELDS)
    assert set(window.arrays("state")) == {f"rng/{step}" for step in range(4)}
    # Every dropout of two layers, and of the classifier, once for each step; inside attention too.
    assert len(trace.draws) == 4 * len({draw.name for draw in trace.draws})
    assert any(draw.name.endswith("attention.self.dropout") for draw in trace.draws)
    assert len({draw.dropped_sha256 for draw in trace.draws}) == len(trace.draws)


def test_two_traces_agree_to_the_bit(workshop: Workshop, window: Trained) -> None:
    walked = walk(Pair(load_record(window.folder), load_record(traced(workshop).folder)))
    assert walked.equal
    assert not walked.mismatches


def test_a_trace_in_fp64_is_one_of_fp64(workshop: Workshop, window: Trained) -> None:
    probe = traced(workshop, precision="fp64").record.evidence.probe
    assert {step.logits_dtype for step in probe.steps} == {"float64"}
    losses = [step.loss for step in window.record.evidence.probe.steps]
    assert [step.loss for step in probe.steps] == pytest.approx(losses, rel=1e-3)


@pytest.mark.parametrize("rung", ["moments", "weights", "gradient"])
def test_a_captured_value_restores_the_bits_that_a_fault_changed(
    workshop: Workshop, window: Trained, monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    """A fault in step 4 is taken back by the tensors that an undisturbed run captured there."""
    kept = traced(workshop, captures=[{"rung": rung, "names": [], "step": 0}])
    window_fault(monkeypatch, rung)
    broken = traced(workshop)
    assert broken.record.evidence.learn.losses[4:] != window.record.evidence.learn.losses[4:]
    replay = {"rung": rung, "step": 0, "source": "capture.safetensors"}
    files = {"capture.safetensors": kept.folder / "capture.safetensors"}
    restored = traced(workshop, files, replays=[replay]).record.evidence
    assert restored.learn.losses == window.record.evidence.learn.losses
    assert restored.probe.steps[-1].weights_sha256 == window.probe.steps[-1].weights_sha256


def window_fault(monkeypatch: pytest.MonkeyPatch, rung: str) -> None:
    step, update = Engine.step, Engine._update

    def stepped(self: Engine, at: int, batch: Any) -> Any:
        if at == 4 and rung == "moments":
            self.optimizer.state.clear()
        if at == 4 and rung == "weights":
            with torch.no_grad():
                next(iter(self.bare.parameters())).mul_(1.5)
        self.at = at  # type: ignore[attr-defined]
        return step(self, at, batch)

    def updated(self: Engine) -> None:
        if self.at == 4 and rung == "gradient":  # type: ignore[attr-defined]
            for value in self.bare.parameters():
                value.grad *= 0.5
        update(self)

    monkeypatch.setattr(Engine, "step", stepped)
    monkeypatch.setattr(Engine, "_update", updated)


@pytest.mark.parametrize(("trace", "steps"), [(8, 8), (9, 4)])
def test_a_trace_outside_of_the_experiment_is_refused(workshop: Workshop, trace: int, steps: int) -> None:
    with pytest.raises(InvalidInputError, match="trace"):
        traced(workshop, trace=trace, steps=steps)


def test_the_trail_sees_every_kind_of_change() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.Linear(9, 9))
    plain = [value.detach().clone() for value in model.parameters()]
    changes = {
        "a bit": lambda values: values[0].view(torch.int32)[3, 3].add_(1),
        "two elements exchanged": lambda values: values[0][0].copy_(values[0][0].flip(0)),
        "two parameters exchanged": lambda values: (values[0].copy_(plain[2]), values[2].copy_(plain[0])),
        "a sign": lambda values: values[3][0].neg_(),
    }
    trail = WeightsTrail(model)
    trail.add()
    with torch.no_grad():
        for change in changes.values():
            change([value.data for value in model.parameters()])
            trail.add()
            for value, old in zip(model.parameters(), plain, strict=True):
                value.copy_(old)
        trail.add()
    digests = trail.digests()
    assert digests[0] == digests[-1]
    assert len(set(digests)) == len(changes) + 1
    half = torch.nn.Linear(3, 3).bfloat16()
    double = WeightsTrail(half)
    double.add()
    assert len(double.digests()[0]) == 16
    assert np.unique([len(digest) for digest in digests]).tolist() == [16]


def attention_dropout_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dropout_module._attention
    monkeypatch.setattr(dropout_module, "_attention", lambda *a, **k: plain(*a, **(k | {"dropout": 0.0})))


def weights_rounded_at_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    save = learn_module.save_checkpoint

    def rounded(folder: Path, engine: Engine, *rest: Any) -> None:
        save(folder, engine, *rest)
        for value in engine.bare.parameters():
            value.data.copy_(value.data.bfloat16())

    monkeypatch.setattr(learn_module, "save_checkpoint", rounded)


def dropout_not_rescaled(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dropout_module._Masked.forward
    monkeypatch.setattr(dropout_module._Masked, "forward", staticmethod(lambda c, v, m, _scale: plain(c, v, m, 1.0)))


def gradients_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Engine._backward
    monkeypatch.setattr(Engine, "_backward", lambda self, loss, _share: plain(self, loss, 1.0))


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (attention_dropout_skipped, "rng"),
        (weights_rounded_at_a_checkpoint, "optimizer"),
        pytest.param(dropout_not_rescaled, "operator", marks=pytest.mark.whole_table),
        pytest.param(gradients_summed, "gradient", marks=pytest.mark.whole_table),
    ],
)
def test_a_fault_of_the_curve_alone_is_named_and_confirmed(
    workshop: Workshop, whole: Trained, fault: Callable[[pytest.MonkeyPatch], None], code: str
) -> None:
    spec = learning(workshop)
    records: dict[str, LoadedRecord] = {}

    def train(side: str, bundle: Path | None = None) -> LoadedRecord:
        with pytest.MonkeyPatch.context() as patched:
            if side == "candidate":
                fault(patched)
            number = f"{side}-{len(records)}"
            made = load_record(workshop.train(spec, experiment=bundle, record_id=number).folder)
        records[number] = made
        return made

    reference, candidate = load_record(whole.folder), train("candidate")
    state, asked = Confirmation.begin(reference, candidate, compare(reference, candidate), 6), 0
    while (request := state.next()) is not None:
        asked += 1
        bundle = write_bundle(request, records, workshop.out())
        (bundle / "experiment.json").write_text(json.dumps(request.experiment.to_json()))
        state = state.absorb(request, train(request.runs_on, bundle))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, "confirmed")]
    assert asked <= 6
