"""Experiments on the learning curve: unchanged reruns, and values by their definitions."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.confirm import after_experiment, begin, next_request
from plumbline.judge.curves import has_equal_evaluations
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.experiment import Experiment
from plumbline.schema.record import read_record
from plumbline.schema.spec import RunSpec
from plumbline.train import learn as learn_module
from plumbline.train.engine import Engine
from plumbline.train.models import dropout as dropout_module
from tests.train.conftest import Trained, Workshop, before_steps
from tests.train.forked_ranks import run_ranks

STEPS = 10
LEARN = {"steps": STEPS, "evaluate_every": 4, "checkpoint_every": 4, "evaluation_rows": 16}


def learning(workshop: Workshop) -> RunSpec:
    """Return a spec with evaluations and checkpoints between the steps, in two micro-batches."""
    return workshop.spec(probe=None, learn=LEARN, optimizer={"accumulation_steps": 2})


def bundle_of(workshop: Workshop, **body: Any) -> Path:
    bundle = workshop.out()
    bundle.mkdir()
    request = Experiment.model_validate({"experiment_id": "e", "part": "learn", "steps": 8, **body})
    (bundle / "experiment.json").write_text(json.dumps(request.to_json()))
    return bundle


def rerun(workshop: Workshop, **body: Any) -> Trained:
    return workshop.train(learning(workshop), experiment=bundle_of(workshop, **body))


@pytest.fixture(scope="module")
def whole(workshop: Workshop) -> Trained:
    return workshop.train(learning(workshop))


def assert_starts_as(trained: Trained, other: Trained, steps: int) -> None:
    """Assert that a rerun has the bits of the first `steps` steps of a training."""
    ours, theirs = trained.record.evidence.learn, other.record.evidence.learn
    assert theirs.losses == ours.losses[:steps]
    assert theirs.evaluations == tuple(each for each in ours.evaluations if each.step <= steps)
    assert theirs.batches == {name: logged[:steps] for name, logged in ours.batches.items()}
    assert theirs.weights[0] == ours.weights[0]


@pytest.mark.first(1)
@pytest.mark.parametrize("steps", [8, STEPS])
def test_an_unchanged_rerun_has_the_bits_of_the_training(workshop: Workshop, whole: Trained, steps: int) -> None:
    """It neither resumes nor repeats steps in fp64."""
    again = rerun(workshop, steps=steps)
    assert_starts_as(whole, again, steps)
    ends = (each.record.evidence.learn.last_weights for each in (whole, again))
    assert len(set(ends)) == (1 if steps == STEPS else 2)
    assert again.record.evidence.probe is None
    assert again.record.evidence.learn.portable is None
    assert not list(missing_evidence(load_record(again.folder), "experiment"))


@contextlib.contextmanager
def plainly(_rank: int, _folder: Path) -> Iterator[None]:
    yield


@pytest.mark.long
def test_two_processes_rerun_their_curve(workshop: Workshop, tmp_path: Path) -> None:
    trained = []
    for more in ((), ("--experiment", str(bundle_of(workshop, steps=6)))):
        out = workshop.out()
        _, _, _, *arguments = workshop.command(learning(workshop), out, *more)
        assert run_ranks(arguments, tmp_path, plainly) == [0, 0]
        trained.append(Trained(out, read_record(out)))
    assert_starts_as(*trained, 6)


def test_the_evaluation_by_definition_undoes_one_in_training_mode(
    workshop: Workshop, whole: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.PreTrainedModel.eval", lambda self: self)
    wrong, healed = (rerun(workshop, steps=STEPS, replays=replays) for replays in ([], [{"stage": "evaluation"}]))
    assert all(each.training_mode for each in wrong.record.evidence.learn.evaluations)
    reference = load_record(whole.folder)
    assert not has_equal_evaluations(reference, load_record(wrong.folder))
    assert has_equal_evaluations(reference, load_record(healed.folder))


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "code", "sure"),
    [("dropout", "rng", "confirmed"), ("rate", "schedule", "confirmed"), ("none", "rng", "likely")],
)
def test_an_experiment_on_the_curve_names_what_the_probe_cannot_see(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, fault: str, code: str, sure: str
) -> None:
    """The probe trains without dropout, and ends before a schedule's later steps: its bits are equal."""
    spec = workshop.spec(
        probe={"steps": 2, "evaluation_rows": 8, "portable_steps": 0},
        learn={**LEARN, "steps": 6, "evaluate_every": 6},
    )
    reference = load_record(workshop.train(spec).folder)
    if fault == "rate":

        def hasten(engine: Engine, step: int) -> None:
            if engine.part == "learn" and step >= 3 and not engine_is_restored:
                for group in engine.optimizer.param_groups:
                    group["lr"] *= 1.1

        engine_is_restored = False
        before_steps(monkeypatch, hasten)
    else:
        build = learn_module.use_portable_dropout

        def wetter(model: object, clock: object, **settings: object) -> None:
            build(model, clock, **settings)
            for module in model.modules():
                if isinstance(module, dropout_module.PortableDropout):
                    module.p = 0.2

        monkeypatch.setattr(learn_module, "use_portable_dropout", wetter)
    candidate = load_record(workshop.train(spec).folder)
    state = begin(reference, candidate, compare(reference, candidate), 4)
    while (request := next_request(state)) is not None:
        engine_is_restored = bool(request.experiment.replays)
        if fault == "none":
            state = after_experiment(state, request, None, "no machine")
            continue
        bundle = bundle_of(workshop, **request.experiment.to_json())
        state = after_experiment(state, request, load_record(workshop.train(spec, experiment=bundle).folder))
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, sure)]


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


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (attention_dropout_skipped, "rng"),
        (weights_rounded_at_a_checkpoint, "optimizer"),
        (dropout_not_rescaled, "operator"),
        (gradients_summed, "gradient"),
    ],
)
def test_a_fault_of_the_curve_alone_is_named_and_confirmed(
    workshop: Workshop, whole: Trained, fault: Callable[[pytest.MonkeyPatch], None], code: str
) -> None:
    spec = learning(workshop)

    def train(side: str, bundle: Path | None = None) -> LoadedRecord:
        with pytest.MonkeyPatch.context() as patched:
            if side == "candidate":
                fault(patched)
            return load_record(workshop.train(spec, experiment=bundle).folder)

    reference, candidate = load_record(whole.folder), train("candidate")
    state, asked = begin(reference, candidate, compare(reference, candidate), 6), 0
    while (request := next_request(state)) is not None:
        asked += 1
        state = after_experiment(
            state, request, train(request.runs_on, bundle_of(workshop, **request.experiment.to_json()))
        )
    assert [(cause.code, cause.sure) for cause in state.judgement.causes] == [(code, "confirmed")]
    assert asked == (3 if code == "rng" else 2)  # dropout has a definition to test, too
