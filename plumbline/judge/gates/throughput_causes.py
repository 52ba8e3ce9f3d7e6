"""Causes of a slower run: step breakdown, load samples, microbenchmarks.

First comes the phase that lost the time: data wait, copy to the device, communication, or compute. For compute: did the
device or a CPU quota hold the training back, did others take as much of the machine as was lost, is the device slow
outside of training as well, or is the software slower? Signs that contradict each other, or are too small for the loss,
name no cause. A machine without an idle core does not measure its device or software. Signs never confirm a cause:
no reference's value was restored.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

from plumbline.schema import limits
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import CauseCode

_THROTTLED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80
"""NVML's throttle reasons: power cap, hardware slowdown, software thermal, hardware thermal, power brake."""

_PHASES: dict[str, str] = {
    "data_wait": "loader",
    "host_to_device": "transfer",
    "forward": "compute",
    "backward": "compute",
    "optimizer": "compute",
    "communication": "communication",
}
_SIGNS = (
    ("cpu_steal", limits.TAKEN_TIME, fact("load.stolen")),
    ("cgroup_throttled", limits.TAKEN_TIME, fact("load.quota")),
    ("foreign_cpu", limits.TAKEN_CORES, fact("load.foreign-cores")),
    ("foreign_gpu_processes", limits.MOST, fact("load.foreign-gpu")),
    ("memory_pressure", limits.TAKEN_TIME, fact("load.memory")),
)

Named = tuple[CauseCode | None, Statement, tuple[Statement, ...]]


def speed_cause(left: SpeedEvidence, right: SpeedEvidence, num_cores: int) -> Named:
    """Return (code, reason, numbers) of a slowdown's cause; code `None` if unclear.

    `num_cores` is the number of cores that the training may use.
    """
    lost = lost_share(left, right) or 0.0
    phase, lines = _phase(left, right)
    is_short = lacks_cores(left, right, num_cores) or bool(_quota(left, right, lost))
    if is_short and not _disk(left, right):
        # Every phase that needs a processor waits for one.
        return _computing(left, right, lost, lines, num_cores)
    if phase == "loader":
        return "loader", fact("speed.loader"), (*lines, *_disk(left, right))
    if phase == "transfer":
        return "transfer", fact("speed.transfer"), lines
    if phase == "communication":
        return None, fact("speed.processes"), lines
    if phase == "compute":
        return _computing(left, right, lost, lines, num_cores)
    return None, fact("speed.no-single-sign"), (*lines, fact("speed.lost", lost=lost))


def _computing(
    left: SpeedEvidence, right: SpeedEvidence, lost: float, lines: tuple[Statement, ...], num_cores: int
) -> Named:
    throttled, less = _throttled(left, right, lost), _less_of_the_machine(left, right, lost)
    device, others = _device(left, right, lost), foreign_load(left, right, num_cores)
    if throttled:
        return "throttling", fact("speed.throttled"), throttled
    has_more_work, quota = _more_work(left, right), _quota(left, right, lost)
    if quota and not has_more_work:
        return "throttling", fact("speed.quota"), quota
    explained = explained_by_load(left, right, num_cores)
    if others and explained >= limits.MOST * lost and not has_more_work:
        share = fact("speed.load-explains", share=explained)
        return "contention", fact("speed.contention"), (*less, *others, share)
    if device and not others:
        return "slow-device", fact("speed.slow-device"), device
    if not device and not others:
        return "software", fact("speed.software"), (*lines, *less)
    return None, fact("speed.load-explains-not"), (*device, *less, *others)


def foreign_load(left: SpeedEvidence, right: SpeedEvidence, num_cores: int) -> tuple[Statement, ...]:
    """Describe each load of other processes that exceeds the baseline's."""
    lines = []
    for name, least, label in _SIGNS:
        before, after = _mean(left, name), _mean(right, name)
        if after is None:
            continue
        is_full = name == "foreign_cpu" and lacks_cores(left, right, num_cores)
        if after - (before or 0.0) > least or is_full:
            of_all = fact("load.of-cores", num_cores=num_cores) if is_full else ""
            lines.append(
                fact(
                    "load.value",
                    label=label,
                    after=after,
                    before="unknown" if before is None else before,
                    of_all=of_all,
                )
            )
    return tuple(lines)


def lacks_cores(left: SpeedEvidence, right: SpeedEvidence, num_cores: int) -> bool:
    """Return whether other processes left too few CPU cores for training.

    It asks for what it used in the baseline; where the baseline's machine was full as well, for all cores. The test is
    absolute: on a machine that is busy every night, the load grows little.
    """
    own = _mean(right, "own_cpu")
    if own is None or not _is_full(right, num_cores):
        return False
    wanted = num_cores if _is_full(left, num_cores) else _mean(left, "own_cpu")
    return wanted is not None and own < limits.ALL_CORES * wanted


def _is_full(side: SpeedEvidence, num_cores: int) -> bool:
    """Return whether all CPU cores were busy."""
    own, others = _mean(side, "own_cpu"), _mean(side, "foreign_cpu")
    if own is None or others is None or others <= limits.TAKEN_CORES:
        return False
    return own + others + (_mean(side, "cpu_steal") or 0.0) >= limits.ALL_CORES * num_cores


def lost_share(left: SpeedEvidence, right: SpeedEvidence) -> float | None:
    """Return the fraction of baseline throughput that was lost; `None` if unmeasured."""
    before, after = left.samples_per_second, right.samples_per_second
    if not before or not after or min(before, after) < 0:
        return None
    return 1 - after / before


def explained_by_load(left: SpeedEvidence, right: SpeedEvidence, num_cores: int) -> float:
    """Return the maximum fraction of throughput that other processes' load explains.

    Throttled and stalled time are shares of this training's own time; stolen time is shared by all that ran. Shares
    multiply, because different loads cannot take the same time.
    """
    kept = 1 - min(max(_stolen(right) - _stolen(left), 0.0), 1.0)
    kept *= (1 - _held_back(left, right)) * (1 - min(_more(left, right, "memory_pressure"), 1.0))
    return 1 - kept * (1 - _taken_cores(left, right, num_cores)) * (1 - _taken_device(left, right))


def _held_back(left: SpeedEvidence, right: SpeedEvidence) -> float:
    """Return the fraction of throughput lost to cgroup CPU throttling."""
    before, after = (min(_mean(side, "cgroup_throttled") or 0.0, 1.0) for side in (left, right))
    return max(1 - (1 - after) / (1 - before), 0.0) if before < 1 else 0.0


def _quota(left: SpeedEvidence, right: SpeedEvidence, lost: float) -> tuple[Statement, ...]:
    """Describe CPU throttling by a quota, if most loss comes from there."""
    if _held_back(left, right) < max(limits.TAKEN_TIME, limits.MOST * lost):
        return ()
    was, now = (_mean(side, "cgroup_throttled") for side in (left, right))
    before, after = (_median(side, "cpu_quota") for side in (left, right))
    lines = [fact("speed.held-back", now=now or 0.0, before="unknown" if was is None else was)]
    if after is not None:
        lines.append(fact("speed.quota-cores", after=after, before="none" if before is None else before))
    return tuple(lines)


def _stolen(side: SpeedEvidence) -> float:
    """Return the fraction of CPU time stolen by the hypervisor."""
    steal, ran = _mean(side, "cpu_steal") or 0.0, (_mean(side, name) for name in ("own_cpu", "foreign_cpu"))
    wanted = steal + sum(value or 0.0 for value in ran)
    return steal / max(wanted, 1.0)


def _taken_cores(left: SpeedEvidence, right: SpeedEvidence, num_cores: int) -> float:
    """Return the maximum fraction of needed cores that other processes used.

    Others took no more than the cores could not give to both, and than the training used less. An idle core slows no
    process; a number that was not read says nothing.
    """
    own, now, others = _mean(left, "own_cpu"), _mean(right, "own_cpu"), _mean(right, "foreign_cpu")
    if not own or now is None or others is None:
        return 0.0
    return max(min(own + others - num_cores, own - now) / own, 0.0)


def _taken_device(left: SpeedEvidence, right: SpeedEvidence) -> float:
    """Return the maximum fraction of the GPU that other processes used.

    `k` more processes take at most `k` of `k + 1` slices, and no more than the device lost outside of the training: an
    idle process costs neither. The sampler knows the number of processes, and not their use.
    """
    others = _more(left, right, "foreign_gpu_processes")
    drops = (_drop(left, right, f"gemm_flops{suffix}") for suffix in ("", "_after"))
    return min(others / (1 + others), max((drop for drop in drops if drop is not None and drop > 0), default=0.0))


def _more(left: SpeedEvidence, right: SpeedEvidence, name: str) -> float:
    """Return by how much the mean load exceeds the baseline's."""
    return max((_mean(right, name) or 0.0) - (_mean(left, name) or 0.0), 0.0)


def _throttled(left: SpeedEvidence, right: SpeedEvidence, lost: float) -> tuple[Statement, ...]:
    before, after = (
        _share_of(side, "gpu_throttle_reasons", lambda v: bool(int(v) & _THROTTLED)) for side in (left, right)
    )
    lines = []
    if after - before > limits.SIGN:
        lines.append(fact("speed.throttled-samples", after=after, before=before))
    for name, label in (("gpu_clock_mhz", "GPU"), ("cpu_clock_mhz", "CPU")):
        was, now = _median(left, name), _median(right, name)
        if was and now and now < was * (1 - max(limits.SLOWER, limits.MOST * lost)):
            lines.append(fact("speed.clock", label=label, now=now, was=was))
    return tuple(lines)


def _less_of_the_machine(left: SpeedEvidence, right: SpeedEvidence, lost: float) -> tuple[Statement, ...]:
    """Report that the process used fewer CPU cores than the baseline did."""
    was, now = _mean(left, "own_cpu"), _mean(right, "own_cpu")
    if was and now and now < was * (1 - max(limits.SLOWER, limits.MOST * lost)):
        return (fact("speed.cores", now=now, was=was),)
    return ()


def _more_work(left: SpeedEvidence, right: SpeedEvidence) -> bool:
    """Return whether a step needs clearly more CPU time than the baseline."""
    was, now = _mean(left, "own_cpu"), _mean(right, "own_cpu")
    if not was or not now or not left.step_seconds or not right.step_seconds:
        return False
    return now * right.step_seconds > limits.MORE_WORK * was * left.step_seconds


def _phase(left: SpeedEvidence, right: SpeedEvidence) -> tuple[str, tuple[Statement, ...]]:
    """Return the step phase with most lost time, and its numbers."""
    extra: dict[str, float] = {}
    for name, group in _PHASES.items():
        if name in right.breakdown:
            extra[group] = extra.get(group, 0.0) + right.breakdown[name] - left.breakdown.get(name, 0.0)
    total = sum(max(value, 0.0) for value in extra.values())
    if not total:
        return "", ()
    group = max(extra, key=lambda key: extra[key])
    names = [name for name, owner in _PHASES.items() if owner == group and name in right.breakdown]
    lines = tuple(
        fact(
            "speed.step-part",
            name=name,
            milliseconds=right.breakdown[name] * 1000.0,
            before=left.breakdown.get(name, 0.0) * 1000.0,
        )
        for name in names
        if right.breakdown[name] or left.breakdown.get(name)
    )
    return (group if extra[group] >= limits.PHASE * total else ""), lines


def _device(left: SpeedEvidence, right: SpeedEvidence, lost: float) -> tuple[Statement, ...]:
    """Report a microbenchmark in which the device was slow before and after."""
    for name in ("gemm_flops", "host_gemm_flops", "device_copy_bytes_per_second"):
        drops = {when: _drop(left, right, name + suffix) for when, suffix in (("before", ""), ("after", "_after"))}
        known = {when: drop for when, drop in drops.items() if drop is not None}
        if known and min(known.values()) > max(limits.SLOWER, limits.MOST * lost):
            shares = " and ".join(f"{drop:.1%}" for drop in known.values())
            return (fact("speed.microbench", name=name, shares=shares, when=" and ".join(known)),)
    return ()


def _disk(left: SpeedEvidence, right: SpeedEvidence) -> tuple[Statement, ...]:
    """Return the signs that slow disk reads delayed the data loader."""
    lines = []
    for name, label in (
        ("disk_busy", fact("disk.busy")),
        ("io_pressure", fact("disk.pressure")),
    ):
        before, after = _mean(left, name), _mean(right, name)
        if before is not None and after is not None and after - before > limits.SIGN:
            lines.append(fact("disk.value", label=label, after=after, before=before))
            rates = [_mean(side, "disk_read_bytes_per_second") for side in (left, right)]
            if name == "disk_busy" and None not in rates:
                was, now = (f"{(rate or 0.0) / 1e6:.3g}" for rate in rates)
                lines.append(fact("disk.rate", now=now, was=was))
    drops = [_drop(left, right, f"disk_read_bytes_per_second{suffix}") for suffix in ("", "_after")]
    if None not in drops and min(drop for drop in drops if drop is not None) > limits.SIGN:
        shares = " and ".join(f"{drop:.0%}" for drop in drops)
        lines.append(fact("disk.fresh-file", shares=shares))
    return tuple(lines)


def _drop(left: SpeedEvidence, right: SpeedEvidence, name: str) -> float | None:
    before, after = left.microbenchmarks.get(name), right.microbenchmarks.get(name)
    return 1 - after / before if before and after else None


def _values(side: SpeedEvidence, name: str) -> list[float]:
    return [value for value in side.samples.get(name, ()) if value is not None]


def _median(side: SpeedEvidence, name: str) -> float | None:
    values = _values(side, name)
    return statistics.median(values) if values else None


def _mean(side: SpeedEvidence, name: str) -> float | None:
    values = _values(side, name)
    return statistics.fmean(values) if values else None


def _share_of(side: SpeedEvidence, name: str, holds: Callable[[float], bool]) -> float:
    values = _values(side, name)
    return sum(holds(value) for value in values) / len(values) if values else 0.0
