"""Numbers, limits and sentences of the gates, on both sides of each limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.gates.accuracy import learn, parting, shared_rows
from plumbline.judge.gates.throughput import noise_of
from plumbline.judge.gates.throughput import speed as throughput
from plumbline.judge.gates.throughput_causes import explained_by_load, foreign_load, lost_share, speed_cause
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates

from .conftest import make_record, other_kernel
from .kept_verdicts import keep, kept
from .test_learn import answered, learned
from .test_speed import only

compare = kept(compare)
learn = kept(learn)
speed_cause = kept(speed_cause)
throughput = kept(throughput)


def run(rate: float | None = 100.0, **changes: Any) -> SpeedEvidence:
    """Return a run of bare numbers; `samples` are means, or tuples of values."""
    samples = {
        key: value if isinstance(value, tuple) else (value,) for key, value in changes.pop("samples", {}).items()
    }
    fields = {"steps": 64, "warmup_steps": 3, "tokens_per_second": None, "step_seconds": 0.25}
    return SpeedEvidence(samples_per_second=rate, samples=samples, **(fields | changes))


def loaded(**samples: Any) -> SpeedEvidence:
    return run(samples=samples)


# The share of throughput that was lost.


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        (run(80.0), run(60.0), 0.25),
        (run(60.0), run(75.0), -0.25),
        (run(80.0), run(80.0), 0.0),
        (run(0.5), run(0.25), 0.5),
        (run(80.0, wall_seconds=3.0), run(60.0, wall_seconds=9.0), 0.25),
        (run(None), run(60.0), None),
        (run(80.0), run(None), None),
        (run(0.0), run(60.0), None),
        (run(80.0), run(0.0), None),
        (run(80.0), run(-1.0), None),
        (run(-1.0), run(80.0), None),
        (run(0.25), run(0.5), -1.0),
        # Only one side has a wall time: the median steps are compared.
        (run(80.0, step_seconds=0.3), run(8.0, step_seconds=0.4, wall_seconds=9.0), 0.25),
        (run(80.0, step_seconds=0.4, wall_seconds=9.0), run(8.0, step_seconds=0.5), 0.2),
        (run(80.0, step_seconds=None), run(8.0, step_seconds=0.4, wall_seconds=9.0), None),
        (run(80.0, step_seconds=0.3), run(8.0, step_seconds=None, wall_seconds=9.0), None),
        (run(80.0, step_seconds=0.0), run(8.0, step_seconds=0.4, wall_seconds=9.0), None),
    ],
)
def test_the_lost_share_is_of_the_baselines_throughput(
    before: SpeedEvidence, after: SpeedEvidence, lost: float | None
) -> None:
    found = lost_share(before, after)
    assert found == (None if lost is None else pytest.approx(lost, abs=1e-12))


@pytest.mark.parametrize(
    ("changes", "noise"),
    [
        ({"step_seconds": 0.5, "step_seconds_quartiles": (0.4, 0.7), "steps": 25}, 1.2533 * (0.3 / 1.349) / 0.5 / 5),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 4}, 1.2533 * (0.3 / 1.349) / 2 / 2),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 1}, 1.2533 * (0.3 / 1.349) / 2),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.7, 0.4), "steps": 4}, 0.0),
        ({"step_seconds": 2.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 0}, 0.0),
        ({"step_seconds": 0.0, "step_seconds_quartiles": (0.4, 0.7), "steps": 4}, 0.0),
        ({"step_seconds": None, "step_seconds_quartiles": (0.4, 0.7), "steps": 4}, 0.0),
        ({"step_seconds": 2.0, "steps": 4}, 0.0),
    ],
)
def test_noise_follows_from_quartiles_and_the_number_of_steps(changes: dict[str, Any], noise: float) -> None:
    assert noise_of(run(**changes)) == pytest.approx(noise, rel=1e-9)


# Foreign load.

LEAST = {
    "cpu_steal": 0.03, "cgroup_throttled": 0.03, "foreign_cpu": 0.15, "foreign_gpu_processes": 0.5,
    "memory_pressure": 0.05,
}  # fmt: skip


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("before", [None, 0.0, 0.25])
def test_a_load_is_named_only_clearly_above_the_baselines(name: str, before: float | None) -> None:
    baseline = loaded(**({} if before is None else {name: before}))
    edge = (before or 0.0) + LEAST[name]
    assert keep(foreign_load(baseline, loaded(**{name: edge + 1e-6})))
    for quiet in (edge - 1e-6, 0.0):
        assert foreign_load(baseline, loaded(**{name: quiet})) == ()
    assert foreign_load(baseline, loaded()) == ()


def test_a_load_that_is_exactly_at_its_least_is_not_named() -> None:
    assert foreign_load(loaded(foreign_gpu_processes=0.5), loaded(foreign_gpu_processes=1.0)) == ()
    assert speed_cause(computed(1.0, own_cpu=2.0), computed(2.0, own_cpu=0.5, foreign_gpu_processes=0.5))[2] == (
        "cores in use by the training: 0.5 instead of 2",
    )
    stalls = computed(2.0, own_cpu=2.0, foreign_gpu_processes=0.5)
    assert speed_cause(computed(1.0, own_cpu=2.0), stalls)[0] == "software"


def test_values_that_were_not_read_do_not_count() -> None:
    values = (None, 0.25, None, 0.75)
    assert foreign_load(loaded(cpu_steal=0.125), loaded(cpu_steal=values)) == ("stolen CPU time: 0.5 instead of 0.125",)
    assert foreign_load(loaded(cpu_steal=(None, None)), loaded(cpu_steal=0.5)) == ("stolen CPU time: 0.5 instead of 0",)
    assert foreign_load(loaded(), loaded(cpu_steal=(None,))) == ()


@pytest.mark.parametrize(
    ("before", "after", "share"),
    [
        ({}, {}, 0.0),
        ({}, {"cpu_steal": 0.25}, 0.25),
        ({"cpu_steal": 0.25}, {"cpu_steal": 0.75}, 0.5),
        ({"cpu_steal": 0.75}, {"cpu_steal": 0.25}, 0.0),
        ({"cpu_steal": 0.75}, {}, 0.0),
        ({}, {"cgroup_throttled": 0.25}, 0.25),
        ({}, {"memory_pressure": 0.25}, 0.25),
        ({}, {"memory_pressure": 3.0}, 1.0),
        ({}, {"cpu_steal": 0.5, "cgroup_throttled": 0.5, "memory_pressure": 0.5}, 0.875),
        ({}, {"foreign_cpu": 1.0}, 0.5),
        ({}, {"foreign_cpu": 3.0}, 0.75),
        ({"own_cpu": 3.0}, {"foreign_cpu": 1.0, "own_cpu": 99.0}, 0.25),
        ({"own_cpu": 4.0, "foreign_cpu": 2.0}, {"foreign_cpu": 6.0}, 0.5),
        ({"foreign_cpu": 6.0}, {"foreign_cpu": 2.0}, 0.0),
        ({}, {"foreign_gpu_processes": 1.0}, 0.5),
        ({"foreign_gpu_processes": 1.0}, {"foreign_gpu_processes": 4.0}, 0.75),
        ({}, {"foreign_gpu_processes": 3.0, "foreign_cpu": 1.0, "cpu_steal": 0.5}, 0.9375),
    ],
)
def test_foreign_load_explains_its_share(before: dict[str, float], after: dict[str, float], share: float) -> None:
    assert explained_by_load(loaded(**before), loaded(**after)) == pytest.approx(share, abs=1e-12)


# The phase that lost the time.


def phases(rate: float = 100.0, **seconds: float) -> SpeedEvidence:
    return run(rate, breakdown=seconds)


BEFORE = {"data_wait": 0.01, "host_to_device": 0.02, "forward": 0.2, "backward": 0.4, "communication": 0.03}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"data_wait": 0.11}, "loader"),
        ({"host_to_device": 0.13}, "transfer"),
        ({"forward": 0.3}, "software"),
        ({"backward": 0.5}, "software"),
        ({"optimizer": 0.1}, "software"),
        ({"communication": 0.2}, "software"),
        # 60% of the lost time name a phase; what other phases gained does not count.
        ({"data_wait": 0.01 + 0.625, "forward": 0.2 + 0.375}, "loader"),
        ({"data_wait": 0.01 + 0.58, "forward": 0.2 + 0.42}, None),
        ({"data_wait": 0.01 + 0.42, "host_to_device": 0.02 + 0.58}, None),
        ({"data_wait": 0.01 + 0.38, "host_to_device": 0.02 + 0.625}, "transfer"),
        ({"data_wait": 0.05, "forward": 0.01}, "loader"),
        ({"forward": 0.4, "backward": 0.2, "data_wait": 0.02}, "loader"),
        ({"data_wait": 0.0, "host_to_device": 0.0, "forward": 0.0}, None),
        ({}, None),
    ],
)
def test_the_phase_with_most_of_the_lost_time_is_named(changed: dict[str, float], code: str | None) -> None:
    found = speed_cause(phases(80.0, **BEFORE), phases(60.0, **(BEFORE | changed)))
    assert found[0] == code
    assert found[1]


def test_a_phase_that_only_the_later_run_has_is_counted_whole_and_one_that_it_lacks_is_not() -> None:
    assert speed_cause(phases(80.0), phases(60.0, data_wait=0.01, host_to_device=0.004))[0] == "loader"
    assert speed_cause(phases(80.0, data_wait=0.5), phases(60.0, host_to_device=0.004))[0] == "transfer"
    assert speed_cause(phases(80.0, forward=0.5), phases(60.0))[0] is None
    lines = speed_cause(phases(80.0), phases(60.0, forward=0.0125, backward=0.0, optimizer=0.5))[2]
    assert lines == ("forward 12.5 ms a step instead of 0", "optimizer 500 ms a step instead of 0")
    lines = speed_cause(phases(80.0, backward=0.1), phases(60.0, forward=0.75, backward=0.0))[2]
    assert lines == ("forward 750 ms a step instead of 0", "backward 0 ms a step instead of 100")


# Where the computation was slower.


def computed(seconds: float, **samples: Any) -> SpeedEvidence:
    """Return a run whose time is all computation."""
    rates = samples.pop("rates", {})
    return run(100 / seconds, step_seconds=seconds, breakdown={"forward": seconds}, samples=samples).replace(
        microbenchmarks=rates
    )


def cause(before: dict[str, Any], after: dict[str, Any], seconds: float = 1.25) -> tuple[str | None, tuple[str, ...]]:
    """Return the code and lines of a run that loses a fifth of its throughput by default."""
    code, _, lines = speed_cause(computed(1.0, **before), computed(seconds, **after))
    return code, lines


@pytest.mark.parametrize("reason", [0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x104])
def test_each_reason_to_throttle_counts_by_its_bit(reason: int) -> None:
    is_throttled = bool(reason & 0xEC)
    code, lines = cause({"gpu_throttle_reasons": (0.0,) * 4}, {"gpu_throttle_reasons": (float(reason),) * 4})
    assert (code == "throttling") is is_throttled
    assert ("throttled in 100% of the samples instead of 0%" in lines) is is_throttled


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ((0.0,) * 4, (4.0, 0.0, 0.0, 0.0), "software"),
        ((0.0,) * 5, (4.0, 4.0, 0.0, 0.0, 0.0), "throttling"),
        ((4.0, 4.0, 0.0, 0.0), (4.0, 4.0, 4.0, 0.0), "software"),
        ((4.0, 0.0, 0.0, 0.0), (4.0, 4.0, 4.0, 0.0), "throttling"),
        ((4.0,) * 4, (0.0,) * 4, "software"),
        ((), (4.0, None, 1.0, 1.0), "throttling"),
        ((4.0,), (), "software"),
    ],
)
def test_a_quarter_more_throttled_samples_are_throttling(
    before: tuple[float, ...], after: tuple[float | None, ...], code: str
) -> None:
    assert cause({"gpu_throttle_reasons": before}, {"gpu_throttle_reasons": after})[0] == code


@pytest.mark.parametrize(("clock", "label"), [("gpu_clock_mhz", "GPU"), ("cpu_clock_mhz", "CPU")])
@pytest.mark.parametrize(
    ("seconds", "was", "now", "is_throttled"),
    [
        (1.25, 1000.0, 899.0, True),  # a fifth was lost: a tenth of the clock counts
        (1.25, 1000.0, 901.0, False),
        (1.25, 1000.0, (500.0, 899.0, 2000.0), True),
        (1.04, 1000.0, 949.0, True),
        (1.04, 1000.0, 951.0, False),
        (1.25, 1000.0, 1200.0, False),
        (1.25, 0.0, 500.0, False),
        (1.25, 1000.0, 0.0, False),
        (1.25, (), 500.0, False),
        (1.25, 1000.0, (), False),
    ],
)
def test_a_lower_clock_counts_from_half_of_the_loss_on(  # noqa: PLR0917 - pytest's
    clock: str, label: str, seconds: float, was: Any, now: Any, is_throttled: bool
) -> None:
    code, lines = cause({clock: was}, {clock: now}, seconds)
    assert code == ("throttling" if is_throttled else "software")
    assert any(line.startswith(f"{label} clock ") for line in lines) is is_throttled
    if is_throttled:
        assert lines == (f"{label} clock {899 if seconds > 1.1 else 949} MHz instead of 1000",)


@pytest.mark.parametrize(
    ("seconds", "was", "now", "code"),
    [
        (1.25, 2.0, 1.79, "contention"),  # a tenth at least
        (1.25, 2.0, 1.81, "software"),
        (1.36, 2.0, 1.73, "contention"),  # or half of the loss
        (1.36, 2.0, 1.74, "software"),
        (2.0, 2.0, 1.51, "software"),
        (1.25, 2.0, 3.0, "software"),
        (1.25, 2.0, (), "software"),
        (1.25, (), 1.0, "software"),
        # Fewer cores for clearly more work: no part of the machine was lost, and no cause is clear.
        (2.0, 2.0, 1.49, None),
        (4.0, 2.0, 0.59, "contention"),
        (4.0, 2.0, 0.61, None),
        (2.0, 1.0, 0.6, "contention"),  # exactly the limit of more work
        (2.0, 1.0, 0.61, None),
    ],
)
def test_fewer_cores_are_contention_unless_the_work_grew(seconds: float, was: Any, now: Any, code: str | None) -> None:
    found, lines = cause({"own_cpu": was}, {"own_cpu": now}, seconds)
    assert found == code
    if code == "contention":
        assert lines == (f"cores in use by the training: {now:.3g} instead of {was:.3g}",)


@pytest.mark.parametrize("missing", [0, 1])
def test_without_a_median_step_no_work_is_known(missing: int) -> None:
    before, after = computed(1.0, own_cpu=2.0), computed(4.0, own_cpu=0.61)
    sides = [before, after]
    sides[missing] = sides[missing].replace(step_seconds=None)
    assert speed_cause(*sides)[0] == "contention"
    assert speed_cause(before, after)[0] is None


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("before", [None, 0.25])
def test_stalls_and_processes_on_the_gpu_are_contention_and_a_busy_cpu_alone_is_not(
    name: str, before: float | None
) -> None:
    baseline = {} if before is None else {name: before}
    edge = (before or 0.0) + LEAST[name]
    code = None if name == "foreign_cpu" else "contention"
    assert cause(baseline, {name: edge + 1e-6})[0] == code
    assert cause(baseline, {name: edge - 1e-6})[0] == "software"
    # With clearly more work in a step, the signs contradict each other.
    more = {"own_cpu": 2.0, name: edge + 1e-6}
    assert cause({"own_cpu": 2.0} | baseline, more)[0] is None


@pytest.mark.parametrize("name", ["gemm_flops", "host_gemm_flops", "device_copy_bytes_per_second"])
@pytest.mark.parametrize(
    ("first", "after", "code"),
    [
        (0.89, 0.85, "slow-device"),
        (0.85, 0.89, "slow-device"),
        (0.91, 0.5, "software"),
        (0.5, 0.91, "software"),
        (0.89, None, "slow-device"),
        (None, 0.89, "slow-device"),
        (0.91, None, "software"),
        (0.0, 0.89, "slow-device"),
        (1.5, 1.5, "software"),
        (None, None, "software"),
    ],
)
def test_a_device_is_slow_where_both_of_its_measurements_are(
    name: str, first: float | None, after: float | None, code: str
) -> None:
    both = {name: 8e12, f"{name}_after": 4e12}
    rates = {name: first and 8e12 * first, f"{name}_after": after and 4e12 * after}
    now = {key: value for key, value in rates.items() if value is not None}
    assert cause({"rates": both}, {"rates": now})[0] == code
    # A loaded machine measures slowly as well: the device is not accused.
    if code == "slow-device":
        assert cause({"rates": both}, {"rates": now, "foreign_cpu": 4.0})[0] is None


def test_a_small_loss_takes_a_twentieth_of_a_measurement() -> None:
    rates = {"gemm_flops": 1e12}
    assert cause({"rates": rates}, {"rates": {"gemm_flops": 0.949e12}}, 1.04)[0] == "slow-device"
    assert cause({"rates": rates}, {"rates": {"gemm_flops": 0.951e12}}, 1.04)[0] == "software"
    _, lines = cause({"rates": rates}, {"rates": {"gemm_flops": 0.5e12}}, 1.04)
    assert lines == ("gemm_flops lost 50.0% before the part",)
    rates = {"gemm_flops": 0.25e12, "gemm_flops_after": 1e12}
    _, lines = cause({"rates": rates}, {"rates": {"gemm_flops_after": 0.75e12}}, 1.04)
    assert lines == ("gemm_flops lost 25.0% after the part",)
    _, lines = cause({"rates": rates}, {"rates": {"gemm_flops": 0.125e12, "gemm_flops_after": 0.75e12}}, 1.04)
    assert lines == ("gemm_flops lost 50.0% and 25.0% before and after the part",)


# A wait for data, and the disk.


def waiting(seconds: float, **changes: Any) -> SpeedEvidence:
    samples, rates = changes.get("samples", {}), changes.get("rates", {})
    return run(10 / seconds, breakdown={"data_wait": seconds}, samples=samples).replace(microbenchmarks=rates)


DISK, RATE = "disk_busy", "disk_read_bytes_per_second"


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ({}, {}, []),
        ({DISK: 0.25}, {DISK: 0.46}, ["busy time of the busiest disk: 46% instead of 25%"]),
        ({DISK: 0.25}, {DISK: 0.44}, []),
        ({DISK: 0.46}, {DISK: 0.25}, []),
        ({}, {DISK: 0.9}, []),
        ({DISK: 0.9}, {}, []),
        ({"io_pressure": 0.1}, {"io_pressure": 0.5}, ["time in which a task waited for a disk: 50% instead of 10%"]),
        ({"io_pressure": 0.1, RATE: 3e6}, {"io_pressure": 0.5, RATE: 5e6}, [
            "time in which a task waited for a disk: 50% instead of 10%",
        ]),
        ({DISK: 0.0, RATE: 3e6}, {DISK: 0.5, RATE: 5.5e6}, [
            "busy time of the busiest disk: 50% instead of 0%", "read from disks: 5.5 MB/s instead of 3",
        ]),
        ({DISK: 0.0, RATE: 3e6}, {DISK: 0.5}, ["busy time of the busiest disk: 50% instead of 0%"]),
        ({DISK: 0.0, RATE: 0.0}, {DISK: 0.5, RATE: 2e6}, [
            "busy time of the busiest disk: 50% instead of 0%", "read from disks: 2 MB/s instead of 0",
        ]),
    ],
)  # fmt: skip
def test_a_busy_disk_is_a_sign_of_a_wait(before: dict[str, Any], after: dict[str, Any], lines: list[str]) -> None:
    code, _, found = speed_cause(waiting(1.0, samples=before), waiting(2.0, samples=after))
    assert code == "loader"
    assert list(found[1:]) == lines


@pytest.mark.parametrize(
    ("first", "after", "is_slow"),
    [
        (0.69, 0.6, True),
        (0.6, 0.69, True),
        (0.71, 0.1, False),
        (0.1, 0.71, False),
        (None, 0.1, False),
        (0.1, None, False),
    ],
)
def test_a_disk_is_slow_where_both_of_its_measurements_lost_a_third(
    first: float | None, after: float | None, is_slow: bool
) -> None:
    both = {RATE: 1e9, f"{RATE}_after": 5e8}
    now = {RATE: first and 1e9 * first, f"{RATE}_after": after and 5e8 * after}
    rates = {key: value for key, value in now.items() if value is not None}
    _, _, found = speed_cause(waiting(1.0, rates=both), waiting(2.0, rates=rates))
    shares = f"{1 - (first or 0):.0%} and {1 - (after or 0):.0%}"
    line = f"reading a fresh file from the disk lost {shares} before and after the part"
    assert list(found[1:]) == ([line] if is_slow else [])


# The gate itself.


def pair_of(before: SpeedEvidence | None, after: SpeedEvidence | None, **changes: Any) -> Pair:
    sides = []
    for evidence, more in ((before, {}), (after, changes)):
        made = make_record(**more)
        speed = evidence.to_json() if evidence else None
        record = made.record.replace(evidence=made.record.evidence.replace(speed=speed))
        sides.append(LoadedRecord(record, made.folder, made.arrays))
    return Pair(sides[0], sides[1])


@pytest.mark.parametrize(
    ("rate", "outcome", "asks"),
    [(150.0, "pass", False), (100.0, "pass", False), (95.0, "pass", False), (94.9, "inconclusive", True)],
)
def test_a_drop_beyond_the_limit_asks_for_a_rerun(rate: float, outcome: str, asks: bool) -> None:
    findings, causes = throughput(pair_of(run(100.0), run(rate)), Gates(throughput_drop=0.0500001))
    assert [(finding.outcome, finding.needs_rerun) for finding in findings] == [(outcome, asks)]
    assert findings[0].observed == pytest.approx(1 - rate / 100)
    assert causes == []


@pytest.mark.parametrize(("errors", "outcome"), [(3.0, "inconclusive"), (2.0, "drift")])
@pytest.mark.parametrize("noisy", [0, 1])
def test_a_drop_has_to_exceed_the_noise_of_both_runs(errors: float, outcome: str, noisy: int) -> None:
    sides = [run(100.0), run(90.0)]
    # The quartiles make a standard error of 4%.
    spread = 0.04 * 0.25 * 8 * 1.349 / 1.2533
    sides[noisy] = sides[noisy].replace(step_seconds_quartiles=(0.25, 0.25 + spread))
    gates = Gates(throughput_standard_errors=errors)
    findings, _ = throughput(pair_of(sides[0], sides[1]), gates, confirms=run(90.0))
    assert findings[0].outcome == outcome
    assert not findings[0].needs_rerun


@pytest.mark.parametrize(
    ("again", "outcome", "observed"),
    [
        (100.0, "pass", 0.0),
        (96.0, "pass", 0.04),
        (80.0, "drift", 0.2),
        (50.0, "drift", 0.3),
        (None, "inconclusive", 0.3),
    ],
)
def test_a_rerun_decides_and_the_smaller_drop_is_reported(again: float | None, outcome: str, observed: float) -> None:
    findings, causes = throughput(pair_of(run(100.0), run(70.0)), Gates(), confirms=run(again))
    assert (findings[0].outcome, findings[0].needs_rerun) == (outcome, False)
    assert findings[0].observed == pytest.approx(observed)
    assert [cause.code for cause in causes] == (["unattributed"] if outcome == "drift" else [])


@pytest.mark.parametrize(
    ("first", "second", "outcome", "code"),
    [
        ({"foreign_cpu": 4.0}, {}, "inconclusive", None),
        ({}, {"foreign_cpu": 4.0}, "inconclusive", None),
        ({"foreign_cpu": 0.25}, {}, "drift", "unattributed"),
        ({"foreign_cpu": 0.1}, {}, "drift", "software"),
        ({"cpu_steal": 0.5}, {"cpu_steal": 0.5}, "drift", "contention"),
        ({"cpu_steal": 0.5}, {}, "inconclusive", None),
        ({"cpu_steal": 0.04}, {}, "drift", "unattributed"),
    ],
)
def test_an_excuse_holds_only_where_no_single_cause_is_clear(
    first: dict[str, float], second: dict[str, float], outcome: str, code: str | None
) -> None:
    before, slow = computed(1.0), (computed(1.5, **first), computed(1.6, **second))
    pair = pair_of(before, slow[0], fingerprint=other_kernel())
    findings, causes = throughput(pair, Gates(), confirms=slow[1])
    assert findings[0].outcome == outcome
    assert findings[0].observed == pytest.approx(1 / 3)
    assert [cause.code for cause in causes] == ([code] if code else [])


def test_machines_of_two_classes_are_not_compared_and_say_which() -> None:
    cores = {"cpu": {"model": "m", "isa": "AVX2", "num_cores": 8, "num_threads": 1}}
    findings, causes = throughput(pair_of(run(100.0), run(10.0), fingerprint=cores), Gates())
    assert (findings[0].outcome, causes) == ("inconclusive", [])
    assert findings[0].detail == (
        "different machine classes: the reference ran on m, 2 cores, the candidate on m, 8 cores"
    )
    turned = pair_of(run(100.0), run(10.0), fingerprint=cores)
    findings, _ = throughput(Pair(turned.candidate, turned.reference), Gates())
    assert findings[0].detail == (
        "different machine classes: the reference ran on m, 8 cores, the candidate on m, 2 cores"
    )
    unmeasured, _ = throughput(pair_of(run(100.0), run(None)), Gates())
    assert unmeasured[0].detail == "no throughput was measured"


@pytest.mark.parametrize("sides", [(None, None), (None, run()), (run(), None)])
def test_a_part_that_was_not_measured_has_no_finding_unless_demanded(
    sides: tuple[SpeedEvidence | None, SpeedEvidence | None],
) -> None:
    assert throughput(pair_of(*sides), Gates()) == ([], [])
    findings, _ = throughput(pair_of(*sides), Gates(), demanded=True)
    assert [finding.outcome for finding in findings] == ["inconclusive"]


def test_throughput_that_was_not_asked_for_has_no_finding_and_a_drift_its_place() -> None:
    before, slow = only(evidence=computed(1.0).replace(steps=100)), only(evidence=computed(2.0).replace(steps=100))
    assert compare(before, slow, throughput=False).findings == ()
    judgement = compare(before, slow, confirms=computed(2.0))
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.at) == ("speed", "throughput")
    assert compare(before, slow).first_divergence is None


# Accuracy.


def rows(right: list[int], weights: str, **changes: Any) -> LoadedRecord:
    return answered(right, (0.7, 0.5 if weights == "a" else 0.6), weights, **changes)


def edited(made: LoadedRecord, **changes: Any) -> LoadedRecord:
    """Return the record with changed fields of its last evaluation."""
    curve = made.record.evidence.learn
    assert curve is not None
    last = curve.evaluations[-1].replace(**changes)
    evidence = made.record.evidence.replace(learn=curve.replace(evaluations=(*curve.evaluations[:-1], last)))
    return LoadedRecord(made.record.replace(evidence=evidence), made.folder, made.arrays)


@pytest.mark.parametrize(("ours", "theirs", "gap"), [(0.85, 0.84, -0.01), (0.84, 0.85, 0.01), (0.5, 0.9, 0.4)])
def test_the_gap_is_the_candidates_less_the_references(ours: float, theirs: float, gap: float) -> None:
    found = learn(Pair(learned(ours, (0.7, 0.5), "a"), learned(theirs, (0.7, 0.6), "b")), Gates())
    assert found[0].observed == pytest.approx(gap)
    assert found[0].detail == f"{theirs:.4f} instead of the reference's {ours:.4f} on 1024 rows"


@pytest.mark.parametrize(
    ("losses", "weights", "accuracy", "is_equal"),
    [
        ((0.7, 0.5), "a", 0.85, True),
        ((0.7, 0.4), "a", 0.85, False),
        ((0.7, 0.5), "b", 0.85, False),
        ((0.7, 0.5), "a", 0.86, False),
    ],
)
def test_equal_curves_are_those_with_equal_losses_weights_and_ends(
    losses: tuple[float, ...], weights: str, accuracy: float, is_equal: bool
) -> None:
    found = learn(Pair(learned(0.85, (0.7, 0.5), "a"), learned(accuracy, losses, weights)), Gates())
    assert (found[0].detail == "the curves are bitwise equal") is is_equal
    assert found[0].outcome == "pass"


@pytest.mark.parametrize("side", [0, 1, 2])
def test_an_accuracy_that_is_missing_on_either_side_is_inconclusive(side: int) -> None:
    sides = [learned(0.85, (0.7, 0.5), "a"), learned(0.85, (0.7, 0.6), "a")]
    for place in (0, 1) if side == 2 else (side,):
        sides[place] = edited(sides[place], accuracy=None)
    (finding,) = learn(Pair(*sides), Gates())
    assert (finding.outcome, finding.observed) == ("inconclusive", None)
    assert finding.detail == "no accuracy was measured"


def test_records_without_a_curve_have_no_finding_and_no_parting() -> None:
    bare, full = make_record(), learned(0.85, (0.7, 0.5), "a")
    for pair in (Pair(bare, full), Pair(full, bare), Pair(bare, bare)):
        assert learn(pair, Gates()) == []
        assert parting(pair) is None


@pytest.mark.parametrize(
    ("ours", "theirs", "step"),
    [
        ((0.7, 0.6, 0.5, 0.4), (0.7, 0.6, 0.5, 0.4), None),
        ((0.7, 0.6, 0.5, 0.4), (0.7, 0.6, 0.5, 0.3), 3),
        ((0.7, 0.6, 0.5, 0.4), (0.7, 0.65, 0.5, 0.3), 1),
        ((0.7, 0.6, 0.5, 0.4), (0.8, 0.6, 0.5, 0.4), 0),
        ((0.7, 0.6, None, 0.4), (0.7, 0.6, None, 0.4), None),
        ((0.7, 0.6, None, 0.4), (0.7, 0.6, 0.5, 0.4), 2),
        ((0.7, 0.6), (0.7, 0.6, 0.5), None),
    ],
)
def test_curves_part_at_their_first_different_loss(ours: Any, theirs: Any, step: int | None) -> None:
    assert parting(Pair(learned(0.8, ours, "a"), learned(0.8, theirs, "b"))) == step


def test_answers_to_other_rows_or_of_one_side_are_not_compared() -> None:
    left, right = rows([1, 1, 0, 1, 0], "a"), rows([1, 0, 1, 0, 0], "b")
    found = shared_rows(Pair(left, right))
    assert found is not None
    assert (found.only_reference, found.only_candidate, found.num_rows) == (2, 1, 5)
    moved = {**right.arrays["answers"], "row_ids": np.arange(5) + 1}
    assert shared_rows(Pair(left, LoadedRecord(right.record, right.folder, right.arrays | {"answers": moved}))) is None
    for place in (0, 1):
        sides = [left, right]
        side = sides[place]
        arrays = {name: value for name, value in side.arrays.items() if name != "answers"}
        sides[place] = LoadedRecord(side.record, side.folder, arrays)
        assert shared_rows(Pair(*sides)) is None


@pytest.mark.parametrize(("errors", "outcome"), [(1.85, "drift"), (1.88, "inconclusive")])
def test_a_drift_of_accuracy_needs_the_same_rows_to_show_it(errors: float, outcome: str) -> None:
    """Of twelve rows, five only the reference has right: two-sided p is 1 in 16, as of 1.863 standard errors."""
    left, right = rows([1] * 12, "a"), rows([1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1], "b")
    (finding,) = learn(Pair(left, right), Gates(accuracy_standard_errors=errors))
    assert finding.outcome == outcome


def test_a_drift_of_accuracy_alone_is_unattributed_with_its_place() -> None:
    left = learned(0.85, (0.7, 0.5), "a")
    judgement = compare(left, learned(0.6, (0.7, 0.6), "b", fingerprint=other_kernel()))
    assert [cause.code for cause in judgement.causes] == ["unattributed"]
    assert judgement.first_divergence is not None
    assert (judgement.first_divergence.stage, judgement.first_divergence.at) == ("learn", "accuracy")
