"""Host activity since the last reading: CPU, quota, pressure, page faults, disks."""

from __future__ import annotations

import os
import time
from pathlib import Path

from plumbline.train.processes import own_jiffies

__all__ = ["Host", "Reading"]

Reading = dict[str, float | None]
_DISK_TABLE, _BLOCK_DEVICES = Path("/proc/diskstats"), Path("/sys/block")
_SECTOR = 512
_STACKED = ("loop", "ram", "zram", "dm-", "md", "sr")
"""Block devices on top of other devices or memory: their traffic is counted below, or is no disk's."""


def _number(path: Path, key: str | None = None) -> float | None:
    """Return a number in a kernel file, by `key` if there are several."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    fields = (
        text.split()
        if key is None
        else next((line.split()[1:] for line in text.splitlines() if line.startswith(f"{key} ")), [])
    )
    try:
        return float(fields[0])
    except (IndexError, ValueError):
        return None


def _machine_jiffies() -> list[float]:
    """Return the machine's CPU time by kind, in jiffies."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return []
    return [float(word) for word in line.split()[1:9]]


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
        self._machine, self._own = _machine_jiffies(), own_jiffies()
        self._throttled, self._faults = self._throttled_seconds(), self._major_faults()
        self._disks = _disks()
        self._at = time.monotonic()

    @staticmethod
    def _throttled_seconds() -> float | None:
        microseconds = _number(Path("/sys/fs/cgroup/cpu.stat"), "throttled_usec")
        if microseconds is not None:
            return microseconds / 1e6
        nanoseconds = _number(Path("/sys/fs/cgroup/cpu/cpu.stat"), "throttled_time")
        return None if nanoseconds is None else nanoseconds / 1e9

    @staticmethod
    def _major_faults() -> float:
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)

    def _cpu(self) -> Reading:
        """Return the cores' worth of stolen, foreign and own CPU time."""
        machine, own, before = _machine_jiffies(), own_jiffies(), self._machine
        reading: Reading = {"cpu_steal": None, "foreign_cpu": None, "own_cpu": None}
        total = sum(machine) - sum(before)
        if machine and before and total > 0:
            cores = (os.cpu_count() or 1) / total
            idle = machine[3] + machine[4] - before[3] - before[4]
            steal, mine = machine[7] - before[7], own - self._own
            others = max(0.0, total - idle - steal - mine)
            reading = {"cpu_steal": cores * steal, "foreign_cpu": cores * others, "own_cpu": cores * mine}
        self._machine, self._own = machine, own
        return reading

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
        throttled, faults = self._throttled_seconds(), self._major_faults()
        share = None
        if throttled is not None and self._throttled is not None:
            share = (throttled - self._throttled) / elapsed
        new_faults = (faults - self._faults) / elapsed
        self._throttled, self._faults = throttled, faults
        kilohertz = _number(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"))
        return {
            "load": os.getloadavg()[0],
            **self._cpu(),
            "cgroup_throttled": share,
            "major_faults": new_faults,
            "memory_pressure": _pressure("memory"),
            "io_pressure": _pressure("io"),
            **self._disk(elapsed),
            "cpu_clock_mhz": None if kilohertz is None else kilohertz / 1000,
        }


def _pressure(resource_name: str) -> float | None:
    """Return the share of the last ten seconds in which a task waited."""
    try:
        line = Path(f"/proc/pressure/{resource_name}").read_text(encoding="ascii").splitlines()[0]
        return float(line.split("avg10=")[1].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return None
