"""Causes of a slower computation: foreign load, throttling, contention, and a slow device."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge.gates.throughput_causes import explained_by_load, foreign_load, speed_cause
from plumbline.schema.evidence import SpeedEvidence
from tests.said import said

from .made_speed import computed, run


def loaded(**samples: Any) -> SpeedEvidence:
    return run(samples=samples)


# Foreign load.

LEAST = {
    "cpu_steal": 0.03, "cgroup_throttled": 0.03, "foreign_cpu": 0.15, "foreign_gpu_processes": 0.5,
    "memory_pressure": 0.03,
}  # fmt: skip


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("before", [None, 0.0, 0.25])
def test_a_load_is_named_only_clearly_above_the_baselines(name: str, before: float | None) -> None:
    baseline = loaded(**({} if before is None else {name: before}))
    edge = (before or 0.0) + LEAST[name]
    assert foreign_load(baseline, loaded(**{name: edge + 1e-6}), 64)
    for quiet in (edge - 1e-6, 0.0):
        assert foreign_load(baseline, loaded(**{name: quiet}), 64) == ()
    assert foreign_load(baseline, loaded(), 64) == ()


def test_a_load_that_is_exactly_at_its_least_is_not_named() -> None:
    assert foreign_load(loaded(foreign_gpu_processes=0.5), loaded(foreign_gpu_processes=1.0), 1) == ()
    code, _, lines = speed_cause(computed(1.0, own_cpu=2.0), computed(2.0, own_cpu=0.5, foreign_gpu_processes=0.5), 1)
    assert (code, said(lines[-1])) == ("software", "cores in use by the training: 0.5 instead of 2")
    stalls = computed(2.0, own_cpu=2.0, foreign_gpu_processes=0.5)
    assert speed_cause(computed(1.0, own_cpu=2.0), stalls, 1)[0] == "software"


def test_values_that_were_not_read_do_not_count() -> None:
    values = (None, 0.25, None, 0.75)
    stolen = "stolen CPU time: 0.5 instead of"
    assert said(foreign_load(loaded(cpu_steal=0.125), loaded(cpu_steal=values), 1)) == (f"{stolen} 0.125",)
    assert said(foreign_load(loaded(cpu_steal=(None, None)), loaded(cpu_steal=0.5), 1)) == (f"{stolen} unknown",)
    assert foreign_load(loaded(), loaded(cpu_steal=(None,)), 1) == ()


@pytest.mark.parametrize(
    ("before", "after", "is_full"),
    [
        # Busy on both nights: the difference is small, and no core is idle.
        ((0.2, 1.75), (0.17, 1.83), True),
        # The cores have something left, or the training got what it asks for.
        ((0.2, 1.75), (0.07, 1.82), False),
        ((1.0, 0.05), (0.96, 1.0), False),
        ((1.0, 0.05), (0.94, 1.0), True),
        # Its own threads fill the machine.
        ((2.0, 0.0), (1.86, 0.14), False),
        # What was not read says nothing.
        ((0.2, 1.75), ((), 1.83), False),
        ((0.2, 1.75), (0.17, ()), False),
        (((), ()), (0.17, 1.83), False),
    ],
)
def test_a_machine_without_an_idle_core_is_named_however_busy_it_was_before(
    before: tuple[Any, Any], after: tuple[Any, Any], is_full: bool
) -> None:
    sides = [loaded(own_cpu=own, foreign_cpu=others) for own, others in (before, after)]
    lines = foreign_load(*sides, 2)
    assert any(" (of 2) instead of " in line for line in said(lines)) is is_full


@pytest.mark.parametrize(
    ("before", "after", "cores", "share"),
    [
        ({}, {}, 1, 0.0),
        # Stolen are cores, of all that were asked for; at least the training's one.
        ({}, {"cpu_steal": 0.25}, 1, 0.25),
        ({"cpu_steal": 0.25}, {"cpu_steal": 0.75}, 1, 0.5),
        ({"cpu_steal": 0.75}, {"cpu_steal": 0.25}, 1, 0.0),
        ({"cpu_steal": 0.75}, {}, 1, 0.0),
        ({}, {"cpu_steal": 2.0, "own_cpu": 30.0, "foreign_cpu": 8.0}, 64, 0.05),
        ({}, {"cpu_steal": 3.0}, 1, 1.0),
        ({}, {"cgroup_throttled": 0.25}, 1, 0.25),
        ({}, {"memory_pressure": 0.25}, 1, 0.25),
        ({}, {"memory_pressure": 3.0}, 1, 1.0),
        ({}, {"cpu_steal": 0.5, "cgroup_throttled": 0.5, "memory_pressure": 0.5}, 1, 0.875),
        # Others took what the cores could not give to both, and no more than the training lost.
        ({"own_cpu": 4.0}, {"foreign_cpu": 2.0, "own_cpu": 1.0}, 5, 0.25),
        ({"own_cpu": 4.0}, {"foreign_cpu": 2.0, "own_cpu": 1.0}, 6, 0.0),
        ({"own_cpu": 4.0}, {"foreign_cpu": 2.0, "own_cpu": 1.0}, 64, 0.0),
        ({"own_cpu": 4.0, "foreign_cpu": 2.0}, {"foreign_cpu": 3.0, "own_cpu": 1.0}, 4, 0.75),
        ({"own_cpu": 4.0}, {"foreign_cpu": 4.0, "own_cpu": 3.0}, 4, 0.25),
        ({"own_cpu": 4.0}, {"foreign_cpu": 4.0, "own_cpu": 5.0}, 4, 0.0),
        ({"foreign_cpu": 6.0}, {"foreign_cpu": 2.0}, 1, 0.0),
        # What was not read says nothing.
        ({}, {"foreign_cpu": 3.0}, 1, 0.0),
        ({"own_cpu": 1.0}, {"foreign_cpu": 3.0}, 1, 0.0),
        # A quota holds back a share of the baseline's time.
        ({"cgroup_throttled": 0.5}, {"cgroup_throttled": 0.75}, 1, 0.5),
        ({"cgroup_throttled": 0.75}, {"cgroup_throttled": 0.5}, 1, 0.0),
        ({"cgroup_throttled": 1.0}, {"cgroup_throttled": 1.0}, 1, 0.0),
        # Processes on the GPU took no more than the device lost outside of the training.
        ({}, {"foreign_gpu_processes": 1.0}, 1, 0.0),
        ({"rates": {"gemm_flops": 8.0}}, {"foreign_gpu_processes": 1.0, "rates": {"gemm_flops": 6.0}}, 1, 0.25),
        ({"rates": {"gemm_flops": 8.0}}, {"foreign_gpu_processes": 1.0, "rates": {"gemm_flops": 2.0}}, 1, 0.5),
        ({"rates": {"gemm_flops": 8.0}}, {"foreign_gpu_processes": 1.0, "rates": {"gemm_flops": 9.0}}, 1, 0.0),
        ({"rates": {"gemm_flops": 8.0}}, {"rates": {"gemm_flops": 2.0}}, 1, 0.0),
        ({"foreign_gpu_processes": 1.0, "rates": {"gemm_flops_after": 8.0}},
         {"foreign_gpu_processes": 4.0, "rates": {"gemm_flops_after": 0.5}}, 1, 0.75),
        ({"rates": {"gemm_flops": 8.0, "gemm_flops_after": 8.0}},
         {"foreign_gpu_processes": 1.0, "rates": {"gemm_flops": 8.0, "gemm_flops_after": 6.0}}, 1, 0.25),
        ({"own_cpu": 1.0, "rates": {"gemm_flops": 8.0}},
         {"own_cpu": 0.5, "foreign_cpu": 0.5, "cgroup_throttled": 0.5, "foreign_gpu_processes": 1.0,
          "rates": {"gemm_flops": 4.0}}, 1, 0.875),
    ],
)  # fmt: skip
def test_foreign_load_explains_its_share(
    before: dict[str, Any], after: dict[str, Any], cores: int, share: float
) -> None:
    found = explained_by_load(computed(1.0, **before), computed(1.0, **after), cores)
    assert found == pytest.approx(share, abs=1e-12)


# Where the computation was slower.


def cause(before: dict[str, Any], after: dict[str, Any], seconds: float = 1.25) -> tuple[str | None, tuple[str, ...]]:
    """Return the code and lines of a run that loses a fifth of its throughput by default."""
    code, _, lines = speed_cause(computed(1.0, **before), computed(seconds, **after), 1)
    return code, lines


@pytest.mark.parametrize("reason", [0x1, 0x2, 0x4, 0x8, 0x10, 0x20, 0x40, 0x80, 0x100, 0x104])
def test_each_reason_to_throttle_counts_by_its_bit(reason: int) -> None:
    is_throttled = bool(reason & 0xEC)
    code, lines = cause({"gpu_throttle_reasons": (0.0,) * 4}, {"gpu_throttle_reasons": (float(reason),) * 4})
    assert (code == "throttling") is is_throttled
    assert ("throttled in 100% of the samples instead of 0%" in said(lines)) is is_throttled


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
    assert any(line.startswith(f"{label} clock ") for line in said(lines)) is is_throttled
    if is_throttled:
        assert said(lines) == (f"{label} clock {899 if seconds > 1.1 else 949} MHz instead of 1000",)


STALLED, HELD = {"memory_pressure": 0.5}, {"cgroup_throttled": 0.5, "cpu_quota": 0.2}


@pytest.mark.parametrize(
    ("seconds", "was", "now", "code"),
    [
        (1.25, 2.0, 1.0, "contention"),
        (1.25, 2.0, 3.0, None),
        (1.25, 2.0, (), "contention"),
        (1.25, (), 1.0, "contention"),
        # Clearly more work in a step: no part of the machine was lost, and no cause is clear.
        (4.0, 2.0, 0.74, "contention"),
        (4.0, 2.0, 0.76, None),
        (2.0, 1.0, 0.75, "contention"),  # exactly the limit of more work
        (2.0, 1.0, 0.76, None),
    ],
)
def test_a_load_is_contention_unless_the_work_grew(seconds: float, was: Any, now: Any, code: str | None) -> None:
    assert cause({"own_cpu": was}, {"own_cpu": now, **STALLED}, seconds)[0] == code
    # The same for a quota, which is named on its own.
    found, lines = cause({"own_cpu": was}, {"own_cpu": now, **HELD}, seconds)
    assert found == (code and "throttling")
    held = ("held back by the CPU quota: 50% of the time instead of unknown", "CPU quota: 0.2 cores instead of none")
    assert not code or said(lines) == held


def test_a_quota_is_named_on_a_machine_that_others_use_as_well() -> None:
    """A quota of a fifth of a core, as it was measured: 3,050 of 3,105 periods were throttled."""
    before = computed(0.0736, own_cpu=0.631, foreign_cpu=1.335, cgroup_throttled=0.0, rates={"gemm_flops": 153e9})
    held = {"own_cpu": 0.196, "foreign_cpu": 1.761, "cgroup_throttled": 0.544, "cpu_quota": 0.2}
    code, _, lines = speed_cause(before, computed(0.294, rates={"gemm_flops": 42e9}, **held), 2)
    assert code == "throttling"
    assert said(lines)[0] == "held back by the CPU quota: 54% of the time instead of 0%"


@pytest.mark.parametrize("phase", ["data_wait", "host_to_device", "communication"])
def test_a_phase_is_not_blamed_for_a_machine_without_an_idle_core(phase: str) -> None:
    before = computed(1.0, own_cpu=1.0, foreign_cpu=0.2, disk_busy=0.1)
    full = {"own_cpu": 0.4, "foreign_cpu": 1.6}
    slow = computed(2.5, disk_busy=0.1, **full).replace(breakdown={"forward": 1.0, phase: 1.5})
    assert speed_cause(before, slow, 2)[0] == "contention"
    held = computed(2.5, own_cpu=0.4, cgroup_throttled=0.6).replace(breakdown={"forward": 1.0, phase: 1.5})
    assert speed_cause(before, held, 2)[0] == "throttling"
    # A disk that explains the wait stays its cause.
    waits = computed(2.5, disk_busy=0.9, **full).replace(breakdown={"forward": 1.0, "data_wait": 1.5})
    assert speed_cause(before, waits, 2)[0] == "loader"


@pytest.mark.parametrize(("now", "is_less"), [(1.79, True), (1.81, False)])
def test_fewer_cores_in_use_are_no_contention_and_are_told(now: float, is_less: bool) -> None:
    found, lines = cause({"own_cpu": 2.0}, {"own_cpu": now})
    assert found == "software"
    assert (f"cores in use by the training: {now:.3g} instead of 2" in said(lines)) is is_less


@pytest.mark.parametrize("missing", [0, 1])
def test_without_a_median_step_no_work_is_known(missing: int) -> None:
    before, after = computed(1.0, own_cpu=2.0), computed(4.0, own_cpu=0.76, **STALLED)
    sides = [before, after]
    sides[missing] = sides[missing].replace(step_seconds=None)
    assert speed_cause(*sides, 1)[0] == "contention"
    assert speed_cause(before, after, 1)[0] is None


@pytest.mark.parametrize("name", LEAST)
@pytest.mark.parametrize("before", [None, 0.25])
def test_a_load_below_half_of_the_loss_names_nothing_and_a_larger_one_is_contention(
    name: str, before: float | None
) -> None:
    rates = {"rates": {"gemm_flops": 8.0}, "own_cpu": 1.0}
    baseline = rates | ({} if before is None else {name: before})
    busy = (before or 0.0) + LEAST[name] + 1e-6
    held = {"rates": {"gemm_flops": 5.0}, "own_cpu": 0.4}  # the GPU's other process computes
    assert cause(baseline, rates | {name: (before or 0.0) + LEAST[name] - 1e-6})[0] == "software"
    assert cause(baseline, held | {name: busy}, 8.0)[0] is None
    named = "throttling" if name == "cgroup_throttled" else "contention"
    assert cause(baseline, held | {name: (before or 0.0) + 0.6})[0] == named


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
        quiet = {"own_cpu": 2.0}
        assert cause({"rates": both} | quiet, {"rates": now, "foreign_cpu": 4.0} | quiet)[0] is None


def test_a_small_loss_takes_a_twentieth_of_a_measurement() -> None:
    rates = {"gemm_flops": 1e12}
    assert cause({"rates": rates}, {"rates": {"gemm_flops": 0.949e12}}, 1.04)[0] == "slow-device"
    assert cause({"rates": rates}, {"rates": {"gemm_flops": 0.951e12}}, 1.04)[0] == "software"
    _, lines = cause({"rates": rates}, {"rates": {"gemm_flops": 0.5e12}}, 1.04)
    assert said(lines) == ("gemm_flops lost 50.0% before the part",)
    rates = {"gemm_flops": 0.25e12, "gemm_flops_after": 1e12}
    _, lines = cause({"rates": rates}, {"rates": {"gemm_flops_after": 0.75e12}}, 1.04)
    assert said(lines) == ("gemm_flops lost 25.0% after the part",)
    _, lines = cause({"rates": rates}, {"rates": {"gemm_flops": 0.125e12, "gemm_flops_after": 0.75e12}}, 1.04)
    assert said(lines) == ("gemm_flops lost 50.0% and 25.0% before and after the part",)
