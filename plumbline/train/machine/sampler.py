"""Sampler of GPU and host activity, once a second during a measurement."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

from plumbline.environments.control_groups import quota_use
from plumbline.schema.variables import variable

_INTERVAL = 1.0
_MOST = 3600

ActivityReading = dict[str, float | None]
_DISK_TABLE, _BLOCK_DEVICES = Path("/proc/diskstats"), Path("/sys/block")
_SECTOR = 512
_STACKED = ("loop", "ram", "zram", "dm-", "md", "sr")
"""Block devices on top of other devices or memory: their traffic is counted below, or is no disk's."""


def _words(process: int) -> list[str]:
    """Return a process's `/proc` stat fields; empty if the process ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def own_processes() -> set[int]:
    """Return the ids of this training's processes on this machine.

    `torchrun` gives each rank its own session; ranks share a parent and a command. The command distinguishes them from
    a different training of the same shell.
    """
    me = os.getpid()
    if int(variable("WORLD_SIZE", "1")) == 1:
        return {me}
    candidates = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    parents = {process: int(fields[1]) for process in candidates if (fields := _words(process))}
    parent, command = os.getppid(), _command(me)
    family = {me, *(member for member, above in parents.items() if above == parent and _command(member) == command)}
    while new := {member for member, above in parents.items() if above in family} - family:
        family |= new
    return family


def own_jiffies() -> float:
    """Return the CPU time of this training's processes, in jiffies."""
    return sum(float(fields[11]) + float(fields[12]) for process in own_processes() if (fields := _words(process)))


def allowed_cores() -> set[int]:
    """Return the CPU cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return set(affinity(0)) if affinity else set(range(os.cpu_count() or 1))


def _cores_jiffies() -> list[float]:
    """Return the CPU time of the allowed cores by kind, in jiffies.

    Load on processors that this process may not use takes nothing from it.
    """
    try:
        lines = Path("/proc/stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    allowed = {f"cpu{number}" for number in allowed_cores()}
    rows = [fields[1:9] for line in lines if (fields := line.split()) and fields[0] in allowed]
    return [sum(map(float, column)) for column in zip(*rows, strict=True)]


def _clock_mhz() -> float | None:
    try:
        kilohertz = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq").read_text(encoding="ascii")
        return float(kilohertz) / 1000
    except (OSError, ValueError):
        return None


def _disks() -> tuple[float, float, float] | None:
    """Return bytes read and written, and the busiest disk's busy seconds."""
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
    """Reader of host activity: CPU, quota, pressure, page faults, disks."""

    def __init__(self) -> None:
        self._cores, self._own = _cores_jiffies(), own_jiffies()
        self._throttled, self._faults = quota_use().throttled_seconds, self._major_faults()
        self._disks = _disks()
        self._at = time.monotonic()

    @staticmethod
    def _major_faults() -> float:
        import resource

        return float(resource.getrusage(resource.RUSAGE_SELF).ru_majflt)

    def _cpu(self, elapsed: float) -> ActivityReading:
        """Return stolen, foreign and own CPU use in cores, and quota throttling."""
        now, own, before = _cores_jiffies(), own_jiffies(), self._cores
        mine, quota = own - self._own, quota_use()
        reading: ActivityReading = {"cpu_steal": None, "foreign_cpu": None, "own_cpu": None}
        total = sum(now) - sum(before)
        if now and before and total > 0:
            cores = len(allowed_cores()) / total
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

    def _disk(self, elapsed: float) -> ActivityReading:
        """Return disk transfer rates, and the busiest disk's utilisation."""
        before, after = self._disks, _disks()
        self._disks = after
        names = ("disk_read_bytes_per_second", "disk_written_bytes_per_second", "disk_busy")
        if before is None or after is None:
            return dict.fromkeys(names)
        return {name: (now - was) / elapsed for name, was, now in zip(names, before, after, strict=True)}

    def read(self) -> ActivityReading:
        """Return the activity since the previous reading."""
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
    """Return the fraction of the last ten seconds with a stalled task."""
    try:
        line = Path(f"/proc/pressure/{resource_name}").read_text(encoding="ascii").splitlines()[0]
        return float(line.split("avg10=")[1].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return None


def _foreign(num_processes: int) -> int:
    """Return the number of GPU processes that are not this training's.

    Processes are counted, not compared: NVML lists the host's process ids, which differ inside a container.
    """
    return max(0, num_processes - 1)


class _Gpu:
    """Reader of NVML: clocks, power, temperature, throttling, ECC, PCIe, processes."""

    def __init__(self, index: int) -> None:
        self._nvml: Any = importlib.import_module("pynvml")
        self._nvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(index).uuid)
        self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def _value(self, read: Callable[[], Any]) -> float | None:
        try:
            return float(read())
        except self._nvml.NVMLError:
            return None

    def read(self) -> ActivityReading:
        nvml, handle = self._nvml, self._handle
        reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        return {
            "gpu_clock_mhz": self._value(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "gpu_memory_clock_mhz": self._value(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "gpu_power_watts": self._value(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
            "gpu_temperature": self._value(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "gpu_throttle_reasons": self._value(lambda: reasons(handle)),
            "gpu_utilization": self._value(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_ecc_errors": self._value(
                lambda: nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            ),
            "gpu_pcie_generation": self._value(lambda: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
            "gpu_pcie_width": self._value(lambda: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
            "foreign_gpu_processes": self._value(
                lambda: _foreign(len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
            ),
        }


def _readers(device: torch.device) -> list[Any]:
    readers: list[Any] = [Host()]
    if device.type == "cuda":
        try:
            readers.append(_Gpu(device.index or 0))
        except (ImportError, AttributeError, OSError):
            return readers
        except Exception as error:
            # `pynvml`, or `pynvml.nvml` of the older package.
            if type(error).__module__.partition(".")[0] != "pynvml":
                raise
    return readers


class Sampler:
    """Context manager that samples activity once a second in a thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._readings: list[ActivityReading] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plumbline-sampler", daemon=True)
        self._readers: list[Any] = []

    def _sample(self) -> None:
        reading: ActivityReading = {}
        for reader in self._readers:
            reading |= reader.read()
        self._readings.append(reading)

    def _run(self) -> None:
        while not self._end.wait(_INTERVAL) and len(self._readings) < _MOST:
            self._sample()

    def __enter__(self) -> Self:
        self._readers = _readers(self._device)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        if not self._readings:
            self._sample()

    def samples(self) -> dict[str, tuple[float | None, ...]]:
        """Return all readings by name."""
        names = list(dict.fromkeys(name for reading in self._readings for name in reading))
        return {name: tuple(reading.get(name) for reading in self._readings) for name in names}
