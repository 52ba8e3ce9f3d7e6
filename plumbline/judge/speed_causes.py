"""Why a run is slower: from the step's breakdown, the samplers and the microbenchmarks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.verdict import CauseCode

__all__ = ["speed_cause"]

_SHARE = 0.5
"""A phase is named when it holds this share of the lost time."""

_SLOWER = 0.05
"""A microbenchmark is slower when it lost this much, and at least half of what the run lost."""

_THERMAL = 0x8 | 0x20 | 0x40 | 0x80
"""NVML's throttle reasons of heat, hardware slowdown and power brake."""
_POWER_CAP = 0x4

_PHASES: dict[str, CauseCode] = {
    "data_wait": "loader",
    "host_to_device": "transfer",
    "forward": "software",
    "backward": "software",
    "optimizer": "software",
    "communication": "software",
}
_Named = tuple[CauseCode | None, str, tuple[str, ...]]


def speed_cause(left: SpeedEvidence, right: SpeedEvidence) -> _Named:
    """The code, why, and the numbers that say so; no code where the signs do not suffice."""
    lost = _lost(left, right)
    for look in (_throttled, _contended):
        named = look(left, right)
        if named is not None:
            return named
    phase = _phase(left, right)
    device = _device(left, right, lost)
    if phase is not None and phase[0] in ("loader", "transfer"):
        return phase
    if device is not None:
        return device
    if phase is not None:
        return phase
    return None, "the signs name no one cause", (f"the run lost {lost:.1%}",)


def _lost(left: SpeedEvidence, right: SpeedEvidence) -> float:
    if not left.samples_per_second or not right.samples_per_second:
        return 0.0
    return 1 - right.samples_per_second / left.samples_per_second


def _throttled(left: SpeedEvidence, right: SpeedEvidence) -> _Named | None:
    shares = [
        _share_of(side, "gpu_throttle_reasons", lambda v: bool(int(v) & (_THERMAL | _POWER_CAP)))
        for side in (left, right)
    ]
    clocks = [_median(side, "gpu_clock_mhz") for side in (left, right)]
    cpu = [_median(side, "cpu_clock_mhz") for side in (left, right)]
    if shares[1] - shares[0] > 0.25:
        clock = f"; clock {clocks[1]:.0f} MHz where it was {clocks[0]:.0f}" if None not in clocks else ""
        line = f"throttled in {shares[1]:.0%} of the samples where it was {shares[0]:.0%}{clock}"
        return "throttling", "the device lowered its clock", (line,)
    for name, pair in (("GPU", clocks), ("CPU", cpu)):
        before, after = pair
        if before and after and after < before * (1 - max(_SLOWER, _lost(left, right) / 2)):
            line = f"{name} clock {after:.0f} MHz where it was {before:.0f}"
            return "throttling", f"the {name} ran at a lower clock", (line,)
    return None


def _contended(left: SpeedEvidence, right: SpeedEvidence) -> _Named | None:
    """Someone else took the machine: stolen, throttled or foreign time, clearly more than the baseline had."""
    lines = []
    for name, least, words in _SIGNS:
        before, after = _mean(left, name), _mean(right, name)
        if after is not None and after - (before or 0.0) > least:
            lines.append(f"{words} {after:.3g} where it was {before or 0.0:.3g}")
    if not lines:
        return None
    return "contention", "something else took a share of the machine", tuple(lines)


_SIGNS = (
    ("cpu_steal", 0.03, "stolen CPU time"),
    ("cgroup_throttled", 0.03, "share of time held back by the CPU quota"),
    ("foreign_cpu", 0.10, "CPU time of other processes"),
    ("foreign_gpu_processes", 0.5, "other processes on the GPU"),
    ("memory_pressure", 0.05, "share of time stalled on memory"),
)


def _phase(left: SpeedEvidence, right: SpeedEvidence) -> _Named | None:
    """The phase that holds most of the lost time."""
    extra: dict[CauseCode, float] = {}
    for name, code in _PHASES.items():
        if name in right.breakdown:
            extra[code] = extra.get(code, 0.0) + right.breakdown[name] - left.breakdown.get(name, 0.0)
    total = sum(max(value, 0.0) for value in extra.values())
    if not total:
        return None
    code = max(extra, key=lambda key: extra[key])
    if extra[code] < _SHARE * total:
        return None
    names = [name for name, owner in _PHASES.items() if owner == code and name in right.breakdown]
    lines = tuple(
        f"{name} {right.breakdown[name] * 1e3:.3g} ms a step where it was {left.breakdown.get(name, 0.0) * 1e3:.3g}"
        for name in names
    )
    why = {
        "loader": "each step waits longer for its data",
        "transfer": "each step waits longer for the copy to the device",
    }.get(code, "the same device computes the same step more slowly")
    return code, why, lines


def _device(left: SpeedEvidence, right: SpeedEvidence, lost: float) -> _Named | None:
    """The device itself is slow, before and after the part alike."""
    for name in ("gemm_flops", "host_gemm_flops", "device_copy_bytes_per_second"):
        drops = [_drop(left, right, name + suffix) for suffix in ("", "_after")]
        known = [drop for drop in drops if drop is not None]
        if known and min(known) > max(_SLOWER, _SHARE * lost):
            line = f"{name} lost {', '.join(f'{drop:.1%}' for drop in known)} before and after the part"
            return "slow-device", "the device is slow outside of training as well", (line,)
    return None


def _drop(left: SpeedEvidence, right: SpeedEvidence, name: str) -> float | None:
    before, after = left.microbenchmarks.get(name), right.microbenchmarks.get(name)
    return 1 - after / before if before and after else None


def _values(side: SpeedEvidence, name: str) -> list[float]:
    return [value for value in side.samples.get(name, ()) if value is not None and math.isfinite(value)]


def _median(side: SpeedEvidence, name: str) -> float | None:
    values = _values(side, name)
    return statistics.median(values) if values else None


def _mean(side: SpeedEvidence, name: str) -> float | None:
    values = _values(side, name)
    return statistics.fmean(values) if values else None


def _share_of(side: SpeedEvidence, name: str, holds: Callable[[float], bool]) -> float:
    values = _values(side, name)
    return sum(1 for value in values if holds(value)) / len(values) if values else 0.0
