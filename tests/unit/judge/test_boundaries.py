"""The judge's constants, each on both sides of its boundary."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.gates.accuracy import accuracy_error, learn
from plumbline.judge.gates.throughput import speed as throughput
from plumbline.judge.gates.throughput_causes import speed_cause
from plumbline.judge.intervention import Intervention
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.restored import check_restored
from plumbline.judge.walk import walk
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates
from plumbline.schema.tolerance import floor_of
from plumbline.schema.verdict import Divergence, Finding

from .conftest import STEPS, Plan, make_record, other_kernel
from .made_records import edit, experiment, learned, with_evidence
from .made_speed import BREAKDOWN, COMPUTE, record, speed, times

# Tensors: the forward, gradient and weight limits as a comparison uses them.


def scaled(stage: str, name: str, error: float, **changes: Any) -> LoadedRecord:
    """Return a record with one tensor at step 0 scaled by `1 + error`."""
    made = make_record(fingerprint=other_kernel(), **changes)
    probe = made.record.evidence.probe
    assert probe is not None
    taps = [tap.to_json() for tap in probe.taps]
    for place, tap in enumerate(taps):
        if (tap["step"], tap["stage"], tap["name"]) == (0, stage, name):
            made.arrays["sketches"]["sketch"][place] *= 1 + error
            tap |= {"norm": tap["norm"] * (1 + error), "sha256": "e" * 64}
    return with_evidence(made, probe=probe.replace(taps=taps).to_json())


def apart(reference: LoadedRecord, stage: str, name: str, error: float) -> float:
    """Return the error that sketches recover from a scaled tensor."""
    result = Pair(reference, scaled(stage, name, error)).errors(0, stage)  # type: ignore[arg-type]
    return next(tap.error for tap in result if tap.reference.name == name)


@pytest.mark.parametrize(
    ("stage", "name"), [("forward", "layer.norm"), ("gradient", "head.weight"), ("optimizer", "head.weight")]
)
def test_a_tensor_just_over_its_floor_counts_in_an_experiment_and_not_between_trainings(
    reference: LoadedRecord, stage: str, name: str
) -> None:
    """An experiment asks what a change has left; between kernels only equal portable bits are due."""
    floor = floor_of(stage, "fp32")
    share = floor / apart(reference, stage, name, floor)
    for side, count in ((0.98, 0), (1.02, 1)):
        candidate = scaled(stage, name, floor * share * side)
        assert len(walk(Pair(reference, edit(candidate, experiment()))).mismatches) == count
        assert walk(Pair(reference, candidate)).mismatches == ()


@pytest.mark.parametrize(
    "changes", [{"noise": {"layer.norm": 1.0}}, {"gradient_factor": 9.0}, {"update_factor": {3: 9.0}}]
)
def test_numbers_have_no_limit_between_kernels_and_none_may_differ_on_equal_machines(
    reference: LoadedRecord, changes: dict[str, Any]
) -> None:
    judgement = compare(reference, make_record(**changes, fingerprint=other_kernel()))
    assert judgement.verdict == "pass"
    assert [note.code for note in judgement.notes] == ["portable", "rounding"]
    assert compare(reference, make_record(**changes)).verdict == "drift"
    # Nothing exact is left to compare without windows.
    bare = make_record(has_windows=False)
    assert (
        compare(bare, make_record(**changes, has_windows=False, fingerprint=other_kernel())).verdict == "inconclusive"
    )


@pytest.mark.parametrize(("share_left", "is_restored"), [(0.24, True), (0.26, False)])
def test_a_difference_by_definition_is_restored_from_a_quarter_on(share_left: float, is_restored: bool) -> None:
    """A suspect imposed by its definition leaves rounding: what is left has to be a quarter of what was, or less."""
    sides = [
        make_record(fingerprint=other_kernel(), rates=[rate * (1 + off) for rate in Plan().rates])
        for off in (1e-2, share_left * 1e-2)
    ]
    way = Intervention("the update by its definition", STEPS, by_definition=True)
    at = Divergence(stage="optimizer", step=0, at="head.weight")
    item = Mismatch(at, (Finding(check="probe.bits", outcome="drift"),), (Suspicion("optimizer", ""),))
    before, after = sides
    outcome = check_restored(
        Pair(make_record(), before),
        after,
        mismatch=item,
        ways=(way,),
        known=frozenset({"schedule", "optimizer", "operator", "gradient", "loss"}),
    )
    assert outcome.restored is is_restored


# Accuracy: margin, standard error, both sides.


def gap(ours: float, theirs: float, gates: Gates = Gates()) -> str:  # noqa: B008 - frozen
    """Compare two evaluations of 1,024 rows."""
    candidate = learned(theirs, (0.7, 0.6), "b", fingerprint=other_kernel())
    return learn(Pair(learned(ours, (0.7, 0.5), "a"), candidate), gates)[0].outcome


@pytest.mark.parametrize("sign", [1, -1])
def test_the_accuracy_gate_has_two_sides_and_two_limits(sign: int) -> None:
    curves = [learned(item, (0.7,), "a").record.evidence.learn for item in (0.8, 0.8 + sign * 0.06)]
    sides = [curve.evaluations[-1] for curve in curves]  # type: ignore[union-attr]
    error = accuracy_error(sides[0], sides[1])
    assert error == pytest.approx(math.sqrt(sum(s.accuracy * (1 - s.accuracy) / 1024 for s in sides)))
    assert gap(0.8, 0.8 + sign * 0.0199) == "pass"
    assert gap(0.8, 0.8 + sign * 0.0201) == "inconclusive"
    assert gap(0.8, 0.8 + sign * (0.02 + 2.2 * error)) == "inconclusive"
    assert gap(0.8, 0.8 + sign * (0.02 + 2.45 * error)) == "drift"
    # A team that wants to be surer, or less sure, says so.
    assert gap(0.8, 0.8 + sign * (0.02 + 2.2 * error), Gates(accuracy_standard_errors=2.0)) == "drift"


# Throughput: its noise, and the signs that name a cause.


def noisy(lost: float, noise: float) -> SpeedEvidence:
    made = speed(1 / (1 - lost) - 1)
    spread = noise * 1.349 / 1.2533 * math.sqrt(made.steps) * (made.step_seconds or 0.0)
    middle = made.step_seconds or 0.0
    return made.replace(step_seconds_quartiles=(middle - spread / 2, middle + spread / 2))


@pytest.mark.parametrize(("lost", "outcome"), [(0.1485, "inconclusive"), (0.1515, "drift")])
def test_two_drops_have_to_be_three_standard_errors_of_three_medians(lost: float, outcome: str) -> None:
    drop = lost * math.sqrt(1.5)
    pair = Pair(record(noisy(0.0, 0.05)), record(noisy(drop, 0.05)))
    (finding,), _ = throughput(pair, Gates(), confirms=noisy(drop, 0.05))
    assert finding.outcome == outcome


SLOW = times(1.3, *COMPUTE)
LOST = 1 - sum(BREAKDOWN.values()) / sum((BREAKDOWN | SLOW).values())


@pytest.mark.parametrize("side", [0.002, -0.002])
@pytest.mark.parametrize(("name", "named"), [("memory_pressure", "contention"), ("cgroup_throttled", "throttling")])
def test_load_is_the_cause_when_it_explains_half_of_the_loss(side: float, name: str, named: str) -> None:
    samples = {name: (LOST / 2 + side,) * 3, "own_cpu": (0.8,) * 3, "foreign_cpu": (0.0,) * 3}
    assert speed_cause(speed(), speed(breakdown=SLOW, samples=samples), 1)[0] == (named if side > 0 else None)
