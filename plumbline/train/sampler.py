"""The 1 Hz sampler: what the device and the host were doing while the training was measured."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

__all__ = ["Sampler"]

_INTERVAL = 1.0
_MOST = 3600
Reading = dict[str, float | None]


def _number(path: Path, key: str | None = None) -> float | None:
    """A number in a kernel's file; the one after `key` where the file has several."""
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return None
    words = (
        text.split()
        if key is None
        else next((line.split()[1:] for line in text.splitlines() if line.startswith(f"{key} ")), [])
    )
    try:
        return float(words[0])
    except (IndexError, ValueError):
        return None


def _own_jiffies() -> float:
    """CPU time of this training: of this process, or of all in its session where `torchrun` started several."""
    folders = Path("/proc").glob("[0-9]*") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else [Path("/proc/self")]
    session, total = str(os.getsid(0)), 0.0
    for folder in folders:
        try:
            words = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since it was listed
        if words[3] == session:
            total += float(words[11]) + float(words[12])
    return total


def _machine_jiffies() -> list[float]:
    """CPU time of the whole machine, by kind."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
    except OSError:
        return []
    return [float(word) for word in line.split()[1:9]]


class _Host:
    """CPU steal, what other processes take, load, the CPU quota, pressure and page faults; shares are of one second."""

    def __init__(self) -> None:
        self._machine, self._own = _machine_jiffies(), _own_jiffies()
        self._throttled, self._faults = self._throttled_seconds(), self._major_faults()
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
        """Cores' worth of time that was stolen, that others took and that the training took."""
        machine, own, before = _machine_jiffies(), _own_jiffies(), self._machine
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

    def read(self) -> Reading:
        """What happened since the last reading."""
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
            "cpu_clock_mhz": None if kilohertz is None else kilohertz / 1000,
        }


def _pressure(what: str) -> float | None:
    """The share of the last ten seconds in which something waited."""
    try:
        line = Path(f"/proc/pressure/{what}").read_text(encoding="ascii").splitlines()[0]
        return float(line.split("avg10=")[1].split()[0]) / 100
    except (OSError, IndexError, ValueError):
        return None


class _Gpu:
    """Clocks, power, temperature, throttle reasons, ECC, PCIe and foreign processes, from NVML."""

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

    def read(self) -> Reading:
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
                lambda: sum(p.pid != os.getpid() for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle))
            ),
        }


def _readers(device: torch.device) -> list[Any]:
    readers: list[Any] = [_Host()]
    if device.type == "cuda":
        try:
            readers.append(_Gpu(device.index or 0))
        except (ImportError, AttributeError, OSError):
            return readers
        except Exception as error:
            if type(error).__module__ != "pynvml":
                raise
    return readers


class Sampler:
    """Samples once a second between entering and leaving, on a thread of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._readings: list[Reading] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="plumbline-sampler", daemon=True)
        self._readers: list[Any] = []

    def _sample(self) -> None:
        reading: Reading = {}
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
        """All readings by name."""
        names = list(dict.fromkeys(name for reading in self._readings for name in reading))
        return {name: tuple(reading.get(name) for reading in self._readings) for name in names}
