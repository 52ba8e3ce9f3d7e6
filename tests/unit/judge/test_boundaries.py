"""The judge's constants, each on both sides of its boundary."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.judge.gates.accuracy import accuracy_error, learn
from plumbline.judge.gates.throughput import noise_of
from plumbline.judge.gates.throughput import speed as throughput
from plumbline.judge.gates.throughput_causes import foreign_load, speed_cause
from plumbline.judge.intervention import Intervention
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair, TapError
from plumbline.judge.restored import check_restored
from plumbline.judge.walk import walk
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import EvaluationEvidence, SpeedEvidence, Tap
from plumbline.schema.suite import Gates
from plumbline.schema.tolerance import floor_of
from plumbline.schema.verdict import Divergence, Finding
from tests.said import said

from .conftest import STEPS, Plan, make_record, other_kernel, set_step, with_log
from .made_records import edit, experiment
from .made_speed import BREAKDOWN, COMPUTE, SAMPLES, record, speed, times

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
    evidence = made.record.evidence.replace(probe=probe.replace(taps=taps).to_json())
    return LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays)


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


def tap(error: float, limit: float = 1e-6) -> TapError:
    made = Tap(step=0, stage="forward", name="m", kind="Linear", dtype="float32", shape=(1,), norm=1.0, sha256="a" * 64)
    return TapError(made, made, error, limit)


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


def test_an_error_over_its_limit_or_not_finite_counts() -> None:
    assert not tap(1e-6).over
    assert tap(1.0001e-6).over
    assert all(tap(error, math.inf).over for error in (math.nan, math.inf))
    assert not tap(1e300, math.inf).over


@pytest.mark.parametrize(("rate", "verdict"), [(1 + 5e-13, "pass"), (1 + 5e-12, "drift")])
def test_learning_rates_are_equal_to_a_trillionth(reference: LoadedRecord, rate: float, verdict: str) -> None:
    made = make_record(fingerprint=other_kernel())
    candidate = with_log(made, lambda log: set_step(log, 2, {"learning_rate": log["learning_rates"][2] * rate}))
    assert compare(reference, candidate).verdict == verdict


# Scalars of untapped steps: norms, losses and the evaluation.


# Accuracy: margin, standard error, both sides.


def ended(accuracy: float, rows: int = 1000) -> dict[str, Any]:
    evaluation = EvaluationEvidence(
        step=2, num_rows=rows, rows_sha256="a" * 64, training_mode=False, predictions_sha256="b" * 64,
        logits_sha256="c" * 64, loss=0.5, accuracy=accuracy,
    )  # fmt: skip
    weights = f"{round(accuracy * 10**6):016x}"
    return {
        "steps": 2,
        "losses": [0.7, accuracy],
        "evaluations": [evaluation.to_json()],
        "weights": [[2, weights]],
    }


def gap(ours: float, theirs: float, gates: Gates = Gates()) -> str:  # noqa: B008 - frozen
    records = []
    for accuracy in (ours, theirs):
        made = make_record(fingerprint={} if not records else other_kernel())
        evidence = made.record.evidence.replace(learn=ended(accuracy))
        records.append(LoadedRecord(made.record.replace(evidence=evidence.to_json()), made.folder, made.arrays))
    return learn(Pair(records[0], records[1]), gates)[0].outcome


@pytest.mark.parametrize("sign", [1, -1])
def test_the_accuracy_gate_has_two_sides_and_two_limits(sign: int) -> None:
    sides = [EvaluationEvidence.model_validate(ended(item)["evaluations"][0]) for item in (0.8, 0.8 + sign * 0.06)]
    error = accuracy_error(sides[0], sides[1])
    assert error == pytest.approx(math.sqrt(sum(s.accuracy * (1 - s.accuracy) / 1000 for s in sides)))
    assert gap(0.8, 0.8 + sign * 0.0199) == "pass"
    assert gap(0.8, 0.8 + sign * 0.0201) == "inconclusive"
    assert gap(0.8, 0.8 + sign * (0.02 + 2.2 * error)) == "inconclusive"
    assert gap(0.8, 0.8 + sign * (0.02 + 2.45 * error)) == "drift"
    # A team that wants to be surer, or less sure, says so.
    assert gap(0.8, 0.8 + sign * (0.02 + 2.2 * error), Gates(accuracy_standard_errors=2.0)) == "drift"


# Throughput: its noise, and the signs that name a cause.


def test_the_noise_of_a_median_step_is_derived_from_its_quartiles() -> None:
    made = speed().replace(step_seconds=1.0, step_seconds_quartiles=(0.9, 1.1), steps=100)
    assert noise_of(made) == pytest.approx(1.2533 * 0.2 / 1.349 / 10)
    assert noise_of(made.replace(step_seconds_quartiles=(1.1, 0.9))) == 0.0
    assert noise_of(made.replace(step_seconds_quartiles=None)) == 0.0
    assert noise_of(made.replace(steps=0)) == 0.0
    assert noise_of(made.replace(steps=1)) == pytest.approx(1.2533 * 0.2 / 1.349)


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


@pytest.mark.parametrize(("drop", "outcome"), [(0.0501, "inconclusive"), (0.0499, "pass"), (-0.5, "pass")])
def test_the_throughput_limit(drop: float, outcome: str) -> None:
    slow = speed(1 / (1 - drop) - 1)
    (finding,), _ = throughput(Pair(record(speed()), record(slow)), Gates())
    assert (finding.outcome, finding.observed) == (outcome, pytest.approx(drop))


@pytest.mark.parametrize(
    ("name", "value", "is_foreign"),
    [
        ("cpu_steal", 0.029, False), ("cpu_steal", 0.031, True),
        ("cgroup_throttled", 0.029, False), ("cgroup_throttled", 0.031, True),
        ("foreign_cpu", 0.249, False), ("foreign_cpu", 0.251, True),  # the baseline has 0.1
        ("foreign_gpu_processes", 0.49, False), ("foreign_gpu_processes", 0.51, True),
        ("memory_pressure", 0.029, False), ("memory_pressure", 0.031, True),
    ],
)  # fmt: skip
def test_a_load_counts_from_a_share_on(name: str, value: float, is_foreign: bool) -> None:
    loaded = speed(samples={name: (value,) * 3})
    assert bool(foreign_load(speed(), loaded, 2)) is is_foreign
    assert not foreign_load(loaded, loaded, 2)
    assert not foreign_load(loaded, speed(), 2)


def code(slow: SpeedEvidence, before: SpeedEvidence | None = None) -> str | None:
    return speed_cause(before or speed(), slow, 1)[0]


@pytest.mark.parametrize(("wait", "named"), [(0.016, "loader"), (0.0115, None)])
def test_a_phase_is_named_from_three_fifths_of_the_lost_time(wait: float, named: str | None) -> None:
    # Ten more milliseconds of computing: 15 of 25 ms are the loader's from 0.016 on (it takes 1 ms anyway).
    forward = {"forward": BREAKDOWN["forward"] + 0.010}
    assert code(speed(breakdown={"data_wait": wait + 1e-5, **forward})) == named


def test_just_below_three_fifths_no_phase_is_named() -> None:
    forward = {"forward": BREAKDOWN["forward"] + 0.010}
    assert code(speed(breakdown={"data_wait": 0.0159, **forward})) is None


SLOW = times(1.3, *COMPUTE)
LOST = 1 - sum(BREAKDOWN.values()) / sum((BREAKDOWN | SLOW).values())


@pytest.mark.parametrize(("side", "named"), [(0.02, "slow-device"), (-0.02, "software")])
def test_a_device_is_slow_when_it_lost_half_of_what_the_run_lost(side: float, named: str) -> None:
    rate = 1e12 * (1 - LOST / 2 - side)
    slow = speed(breakdown=SLOW, rates={"gemm_flops": rate, "gemm_flops_after": rate})
    assert code(slow) == named
    # Before or after alone says nothing.
    assert code(speed(breakdown=SLOW, rates={"gemm_flops": rate})) == "software"


@pytest.mark.parametrize(("side", "named"), [(0.02, "throttling"), (-0.02, "software")])
def test_a_clock_is_lower_when_it_lost_half_of_what_the_run_lost(side: float, named: str) -> None:
    clock = 1500 * (1 - LOST / 2 - side)
    assert code(speed(breakdown=SLOW, samples={"gpu_clock_mhz": (clock,) * 3})) == named
    assert code(speed(breakdown=SLOW, samples={"cpu_clock_mhz": (clock,) * 3})) == "software"


@pytest.mark.parametrize("reason", [0x4, 0x8, 0x20, 0x40, 0x80])
def test_each_reason_to_throttle_counts_in_more_than_a_quarter_of_the_samples(reason: int) -> None:
    for count, named in ((1, "software"), (2, "throttling")):
        samples = {"gpu_throttle_reasons": (float(reason),) * count + (0.0,) * (4 - count)}
        assert code(speed(breakdown=SLOW, samples=samples)) == named


@pytest.mark.parametrize("reason", [0x1, 0x2, 0x10, 0x100])
def test_being_idle_or_set_so_is_no_throttling(reason: int) -> None:
    assert code(speed(breakdown=SLOW, samples={"gpu_throttle_reasons": (float(reason),) * 4})) == "software"


@pytest.mark.parametrize("side", [0.002, -0.002])
@pytest.mark.parametrize(("name", "named"), [("memory_pressure", "contention"), ("cgroup_throttled", "throttling")])
def test_load_is_the_cause_when_it_explains_half_of_the_loss(side: float, name: str, named: str) -> None:
    samples = {name: (LOST / 2 + side,) * 3, "own_cpu": (0.8,) * 3, "foreign_cpu": (0.0,) * 3}
    assert code(speed(breakdown=SLOW, samples=samples)) == (named if side > 0 else None)


@pytest.mark.parametrize("own", [0.5, 0.895, 0.905])
def test_less_use_of_the_processor_alone_is_no_contention(own: float) -> None:
    assert code(speed(breakdown=SLOW, samples={"own_cpu": (own,) * 3})) == "software"


def test_half_more_processor_time_per_step_is_more_work() -> None:
    samples = {"cpu_steal": (0.4,) * 3}
    for factor, named in ((1.52, "contention"), (1.55, None)):
        # The whole step, waits included, takes so much longer at the same use of the processor.
        phases = {name: value * (factor - 0.03) for name, value in BREAKDOWN.items()}
        assert code(speed(breakdown=phases, samples=samples)) == named


@pytest.mark.parametrize(("busy", "is_named"), [(0.27, True), (0.23, False)])
def test_a_disk_is_busy_from_a_quarter_more_on(busy: float, is_named: bool) -> None:
    quiet = speed(samples={"disk_busy": (0.0, 0.0)})
    slow = speed(breakdown={"data_wait": 0.02}, samples={"disk_busy": (busy, busy)})
    assert any("busiest disk" in line for line in said(speed_cause(quiet, slow, 1)[2])) is is_named


@pytest.mark.parametrize(("rate", "is_named"), [(0.74e9, True), (0.76e9, False)])
def test_a_disk_is_slower_from_a_quarter_on(rate: float, is_named: bool) -> None:
    names = ("disk_read_bytes_per_second", "disk_read_bytes_per_second_after")
    quiet = speed(rates=dict.fromkeys(names, 1e9))
    slow = speed(breakdown={"data_wait": 0.02}, rates=dict.fromkeys(names, rate))
    assert any("reading a fresh file" in line for line in said(speed_cause(quiet, slow, 1)[2])) is is_named


def test_samples_that_were_not_read_say_nothing() -> None:
    blank = dict.fromkeys(SAMPLES, (None,) * 3)
    assert not foreign_load(speed(samples=blank), speed(samples=blank), 2)
    assert code(speed(breakdown=SLOW, samples=blank)) == "software"
