"""The experiments of each suspicion: their steps, what they restore, and what is not evidence afterwards."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from plumbline.judge.experiments import interventions, steps_of
from plumbline.judge.intervention import CAPTURED, Intervention, Source, forward_of, only_trained
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Tap
from plumbline.schema.experiment import Capture, Replay
from plumbline.schema.verdict import Divergence, Finding

from .conftest import PARAMETERS, STEPS, cut_to, make_record, with_log
from .made_records import with_evidence

TRAINED = frozenset(PARAMETERS)
_CODES = {
    "data": "data.content", "batch": "data.labels", "weights": "weights.init", "rng": "rng",
    "forward": "operator", "loss": "loss", "gradient": "gradient", "clipped": "gradient", "optimizer": "optimizer",
    "schedule": "schedule", "evaluation": "evaluation",
}  # fmt: skip


def mismatch(rung: str, step: int | None = 1, at: str = "layer.norm", **more: Any) -> Mismatch:
    finding = Finding(check=more.pop("check", "probe.bits"), outcome="drift")
    place = Divergence(stage=rung, step=step, at=at)  # type: ignore[arg-type]
    suspicion = suspected(more.pop("code", _CODES[rung]), **more)
    return Mismatch(place, (finding,), (suspicion,))


def suspected(code: str, **more: Any) -> Suspicion:
    return Suspicion(code, "a reason", **more)  # type: ignore[arg-type]


def ways_of(reference: LoadedRecord, found: Mismatch, trained: frozenset[str] = TRAINED) -> tuple[Intervention, ...]:
    return interventions(found, found.suspicions[0], reference, trained)


@pytest.mark.parametrize("rung", sorted(set(_CODES) - {"forward"}))
def test_an_experiment_ends_two_steps_after_the_difference_and_never_after_the_probe(
    reference: LoadedRecord, rung: str
) -> None:
    whole = {"batch", "data", "evaluation", "rng", "schedule"}
    for step in (0, 1, 3, 4, STEPS + 3, None):
        for way in ways_of(reference, mismatch(rung, step, names=("labels", "input_ids"))):
            first = step or 0
            if way.method == "replay":
                assert way.steps == (STEPS if rung in whole else min(first + 3, STEPS))
            assert all((replay.step or 0) < way.steps for replay in way.replays if first < STEPS)
            assert {capture.stage for capture in way.captures} <= {replay.stage for replay in way.replays}


@pytest.mark.parametrize(("step", "steps"), [(0, 3), (1, 4), (3, 6), (4, 6), (9, 6), (None, 3)])
def test_the_number_of_steps(step: int | None, steps: int) -> None:
    assert steps_of(mismatch("loss", step), STEPS) == steps
    assert steps_of(mismatch("evaluation", step), STEPS) == STEPS


def test_a_value_that_no_experiment_restores_is_observed(reference: LoadedRecord) -> None:
    assert [way.method for way in ways_of(reference, mismatch("gradient", 3, shown=True))] == ["observed"]
    assert [way.method for way in ways_of(reference, mismatch("data", None, "shard x row 3"))] == ["observed"]
    assert [way.method for way in ways_of(reference, mismatch("data", 3, names=("labels",)))] == ["replay"]
    assert ways_of(reference, mismatch("batch", 3)) == ()


def test_no_experiment_restores_what_a_record_without_a_probe_lacks(reference: LoadedRecord) -> None:
    bare = reference.record.replace(evidence=reference.record.evidence.replace(probe=None))
    assert ways_of(LoadedRecord(bare, reference.folder, {}), mismatch("loss")) == ()


@pytest.mark.parametrize("step", [0, 1, 3])
def test_rounding_is_tested_by_fp64_over_the_whole_probe(reference: LoadedRecord, step: int) -> None:
    (kernel,) = ways_of(reference, mismatch("forward", step, code="kernel"))
    assert (kernel.method, kernel.steps) == ("exact", STEPS)
    hidden = ways_of(reference, mismatch("forward", step, code="precision"))
    assert [way.method for way in hidden] == ["replay", "exact"]
    for shown in (
        mismatch("forward", step, code="precision", check="probe.dtype"),
        mismatch("weights", step, code="precision"),
    ):
        ways = ways_of(reference, shown)
        assert [(way.method, way.steps) for way in ways] == [
            ("replay", step + 1), ("exact", STEPS), ("observed", step + 1),
        ]  # fmt: skip


def test_a_gradient_blamed_for_an_update_is_restored_after_clipping(reference: LoadedRecord) -> None:
    (clipped,) = ways_of(reference, mismatch("optimizer", 1, code="gradient"))
    assert {replay.stage for replay in clipped.replays} == {"clipped"}
    assert [replay.step for replay in clipped.replays] == [0, 1, 2, 3]
    (plain,) = ways_of(reference, mismatch("gradient", 1))
    assert {replay.stage for replay in plain.replays} == {"gradient"}
    (update,) = ways_of(reference, mismatch("optimizer", 1))
    assert update.by_definition


@pytest.mark.parametrize(
    ("rung", "code", "is_evidence"),
    [
        ("batch", "data.order", True),
        ("batch", "data.labels", False),
        ("batch", "data.content", False),
        ("batch", "tokenization", False),
        ("schedule", "schedule", True),
        ("rng", "rng", True),
    ],
)
def test_only_an_order_a_rate_or_a_draw_leaves_the_evaluation_as_evidence(
    reference: LoadedRecord, rung: str, code: str, is_evidence: bool
) -> None:
    for step in (1, 4):  # the second is restored to the probe's end already
        ways = ways_of(reference, mismatch(rung, step, code=code, names=("labels",)))
        assert {way.steps for way in ways} == {STEPS}
        assert all(("evaluation" not in way.rungs) is (is_evidence or step == 4) for way in ways)


@pytest.mark.parametrize(("step", "count"), [(0, 2), (1, 1), (4, 1), (None, 2)])
def test_generators_are_restored_at_the_start_only_for_a_difference_there(
    reference: LoadedRecord, step: int | None, count: int
) -> None:
    assert len(ways_of(reference, mismatch("rng", step))) == count


@pytest.mark.parametrize(("check", "rungs"), [("probe.update", []), ("probe.optimizer", ["settings"])])
def test_an_update_is_restored_by_its_definition(reference: LoadedRecord, check: str, rungs: list[str]) -> None:
    (way,) = ways_of(reference, mismatch("optimizer", 1, check=check))
    assert ([replay.stage for replay in way.replays], sorted(way.rungs)) == (["optimizer"], rungs)


def taps(*named: tuple[int, str, str, str]) -> tuple[Tap, ...]:
    return tuple(
        Tap(step=step, stage=stage, name=name, kind=kind, dtype="float32", shape=(1,), norm=1.0, sha256="a" * 64)  # type: ignore[arg-type]
        for step, stage, name, kind in named
    )


TAPS = taps(
    (3, "forward", "third", "Norm"), (1, "gradient", "second", "Gradient"), (1, "forward", "third", "Norm"),
    (1, "forward", "first", "Linear"), (1, "forward", "second", "Norm"), (1, "optimizer", "first", "Weight"),
)  # fmt: skip


def with_taps(record: LoadedRecord, named: tuple[Tap, ...]) -> LoadedRecord:
    probe = record.record.evidence.probe
    assert probe is not None
    return with_evidence(record, probe=probe.replace(taps=named))


@pytest.mark.parametrize(("at", "kind"), [("second", "Norm"), ("first", "Linear"), ("third", "Norm"), ("none", "")])
def test_all_modules_of_the_class_of_the_module_are_imposed(reference: LoadedRecord, at: str, kind: str) -> None:
    for step in (1, 2, 3):
        ways = ways_of(with_taps(reference, TAPS), mismatch("forward", step, at))
        assert [(way.method, way.kind, way.steps) for way in ways] == [("replay", kind, step + 1)] * bool(kind)
        expected = {"Norm": ("third",) if step == 3 else ("third", "second"), "Linear": ("first",)}.get(kind, ())
        captured = [capture.names for way in ways for capture in way.captures if capture.stage == "forward"]
        assert captured == [expected] * bool(kind)


def test_outputs_are_imposed_at_one_step_or_up_to_a_step() -> None:
    single = forward_of(TAPS, 3, "Norm")
    assert single.description == "the reference's outputs of every Norm at step 3"
    several = forward_of(TAPS, 3, "Norm", until=6)
    assert several.description == "the reference's outputs of every Norm at steps 3 to 5"
    assert [(replay.stage, replay.step) for replay in several.replays] == [
        (rung, step) for step in (3, 4, 5) for rung in ("forward", "gradient")
    ]


def _imposing(**more: Any) -> Intervention:
    replays = tuple(Replay(stage=rung, step=3, source=CAPTURED) for rung in ("gradient", "forward", "clipped"))  # type: ignore[arg-type]
    return Intervention("a way", 4, replays=replays, rungs=frozenset({"gradient"}), **more)


def test_gradients_that_only_one_side_has_are_not_imposed_and_their_updates_are_no_evidence(
    reference: LoadedRecord,
) -> None:
    some = frozenset({"layer.linear.weight", "embed.weight"})
    for trained in (TRAINED, some, frozenset[str]()):
        for way in (_imposing(), _imposing(kind="Linear")):
            limited = only_trained(way, trained, reference)
            fields = [replay.fields for replay in limited.replays]
            assert fields == [tuple(sorted(trained)), (), tuple(sorted(trained))]
            hides = bool(way.kind) and trained != TRAINED
            assert limited.rungs == {"gradient"} | ({"clipped", "optimizer"} if hides else set())
    more = only_trained(_imposing(kind="Linear"), TRAINED | {"more.weight"}, reference)
    assert more.rungs == {"gradient"}


def test_a_restored_value_reads_the_capture_of_its_own_record() -> None:
    source = Source("reference-state.safetensors", "unit", "state.safetensors")
    replays = (
        Replay(stage="forward", step=3, source=CAPTURED), Replay(stage="rng", source=source.key),
        Replay(stage="schedule"), Replay(stage="gradient", step=1, source=CAPTURED),
    )  # fmt: skip
    capture = Capture(stage="forward", names=("third",), step=3)
    way = Intervention("a way", 4, replays=replays, sources=(source,), captures=(capture,))
    captured = way.captured_in("unit-x3")
    key = "capture-unit-x3.safetensors"
    assert (captured.captures, captured.steps) == ((), 4)
    assert [replay.source for replay in captured.replays] == [key, source.key, None, key]
    assert captured.sources == (source, Source(key, "unit-x3", CAPTURED))
    assert dataclasses.replace(captured, replays=replays, sources=(source,), captures=(capture,)) == way


def test_only_imposed_outputs_reach_to_later_steps() -> None:
    way = forward_of(TAPS, 1, "Norm")
    held = way.captured_in("unit-x3")
    for steps in (1, 2):
        assert held.reaching(TAPS, steps) is held
    wider = held.reaching(TAPS, 3)
    assert (wider.sources, wider.steps) == ((), 3)
    assert {capture.step for capture in wider.captures} == {1, 2}
    plain = dataclasses.replace(held, kind="")
    assert plain.reaching(TAPS, 5) is plain


def test_a_candidate_of_one_step_is_tested_over_that_step() -> None:
    whole = make_record(tap_steps=(0,))
    short = with_log(whole, lambda log: cut_to(log, 1))
    for rung in ("loss", "gradient", "evaluation", "schedule"):
        for step in (0, 2):
            (way,) = ways_of(short, mismatch(rung, step))
            assert way.steps == 1
