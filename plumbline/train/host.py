"""Host activity since the last reading: CPU, quota, pressure, page faults, disks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from plumbline.control_groups import quota_use
from plumbline.train.processes import own_jiffies

Reading = dict[str, float | None]
_DISK_TABLE, _BLOCK_DEVICES = Path("/proc/diskstats"), Path("/sys/block")
_SECTOR = 512
_STACKED = ("loop", "ram", "zram", "dm-", "md", "sr")
"""Block devices on top of other devices or memory: their traffic is counted below, or is no disk's."""


def _allowed_cores() -> set[int]:
    """Return the processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return set(affinity(0)) if affinity else set(range(os.cpu_count() or 1))


def _cores_jiffies() -> list[float]:
    """Return the CPU time of the allowed processors by kind, in jiffies.

    Load on processors that this process may not use takes nothing from it.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    allowed = {f"cpu{number}" for number in _allowed_cores()}
    rows = [fields[1:9] for line in lines if (fields := line.split()) and fields[0] in allowed]
    return [sum(map(float, column)) for column in zip(*rows, strict=True)]


def _clock_mhz() -> float | None:
    try:
        kilohertz = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text(encoding="ascii")
        return float(kilohertz) / 1000
    except (OSError, ValueError):
        return None


def _disks() -> tuple[float, float, float] | None:
    """Return bytes read and written by all disks, and the busiest disk's seconds."""
    try:
        whole = {path.name for path in _BLOCK_DEVICES.iterdir() if not path.name.startswith(_STACKED)}
        lines = _DISK_TABLE.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    rows = [fields for line in lines if (fields := line.split())[2] in whole and len(fields) > 12]
    if not rows:
        return None
    read, written = (sum(float(fields[place]) for fields in rows) * _SECTOR for place in (5, 9))
    return read, written, max(float(fields[12]) for fields in rows) / 1000


class Host:
    """Reader of CPU, quota, pressure, page-fault and disk activity."""

    def __init__(self) -> None:
        self._cores, self._own = _cores_jiffies(), own_jiffies()
        self._throttled, self._faults = quota_use().throttled_seconds, self._major_faults()
        self._disks = _disks()
        self._at = time.monotonic()

    @staticmethod
    def _major_faults() -> float:
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)

    def _cpu(self, elapsed: float) -> Reading:
        """Return the cores' worth of stolen, foreign and own CPU time, and what the quota held back."""
        now, own, before = _cores_jiffies(), own_jiffies(), self._cores
        mine, quota = own - self._own, quota_use()
        reading: Reading = {"cpu_steal": None, "foreign_cpu": None, "own_cpu": None}
        total = sum(now) - sum(before)
        if now and before and total > 0:
            cores = len(_allowed_cores()) / total
            idle = now[3] + now[4] - before[3] - before[4]
            steal = now[7] - before[7]
            others = max(0.0, total - idle - steal - mine)
            reading = {"cpu_steal": cores * steal, "foreign_cpu": cores * others, "own_cpu": cores * mine}
        held = None
        if quota.throttled_seconds is not None and self._throttled is not None:
            held = quota.throttled_seconds - self._throttled
            # The kernel sums the time over processors: many threads wait for more seconds than pass.
            held = min(held / elapsed, held / max(held + mine / os.sysconf("SC_CLK_TCK"), 1e-3))
        self._cores, self._own, self._throttled = now, own, quota.throttled_seconds
        return reading | {"cgroup_throttled": held, "cpu_quota": quota.cores}

    def _disk(self, elapsed: float) -> Reading:
        """Return the rates of all disks, and the busiest disk's busy share."""
        before, after = self._disks, _disks()
        self._disks = after
        names = ("disk_read_bytes_per_second", "disk_written_bytes_per_second", "disk_busy")
        if before is None or after is None:
            return dict.fromkeys(names)
        return {name: (now - was) / elapsed for name, was, now in zip(names, before, after, strict=True)}

    def read(self) -> Reading:
        """Return the activity since the last reading."""
        now = time.monotonic()
        elapsed, self._at = max(now - self._at, 1e-3), now
        faults = self._major_faults()
        new_faults, self._faults = (faults - self._faults) / elapsed, faults
        return {
            "load": os.getloadavg()[0],
            **self._cpu(elapsed),
            "major_faults": new_faults,
            "memory_pressure": _pressure("memory"),
            "io_pressure": _pressure("io"),
            **self._disk(elapsed),
            "cpu_clock_mhz": _clock_mhz(),
        }


def _pressure(resource_name: str) -> float | None:
    """Return the share of the last ten seconds in which a task waited."""
    try:
        line = Path(f"/proc/pressure/{resource_name}").read_text(encoding="ascii").splitlines()[0]
        return float(line.split("avg10=")[1].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return None
