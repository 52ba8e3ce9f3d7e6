"""The 1 Hz sampler: what the device and the host were doing while the training was measured."""

from __future__ import annotations

import importlib
import os
import threading
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


def _cpu_times() -> tuple[list[float], float]:
    """Jiffies of the whole machine by kind, and those of this process and its threads."""
    try:
        whole = [float(word) for word in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        own = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, ValueError):
        return [], 0.0
    return whole, float(own[11]) + float(own[12])


class _Host:
    """CPU steal, what other processes take, load, cgroup throttling, disk reads and page faults."""

    def __init__(self) -> None:
        self._whole, self._own = _cpu_times()
        self._throttled = self._throttled_seconds()
        self._faults = self._major_faults()

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

    def read(self) -> Reading:
        """Shares are of one second of one core; counters are those of the last interval."""
        (whole, own), (before, own_before) = _cpu_times(), (self._whole, self._own)
        reading: Reading = {"load": os.getloadavg()[0], "cpu_steal": None, "foreign_cpu": None, "own_cpu": None}
        if whole and before and (total := sum(whole) - sum(before)) > 0:
            cores = os.cpu_count() or 1
            idle = whole[3] + whole[4] - before[3] - before[4]
            steal, mine = whole[7] - before[7], own - own_before
            reading |= {
                "cpu_steal": cores * steal / total,
                "own_cpu": cores * mine / total,
                "foreign_cpu": cores * max(0.0, total - idle - steal - mine) / total,
            }
        self._whole, self._own = whole, own
        throttled, faults = self._throttled_seconds(), self._major_faults()
        known = throttled is not None and self._throttled is not None
        reading["cgroup_throttled"] = throttled - self._throttled if known else None  # type: ignore[operator]
        reading["major_faults"] = faults - self._faults
        reading["memory_pressure"] = _pressure("memory")
        reading["io_pressure"] = _pressure("io")
        reading["cpu_mhz"] = _cpu_mhz()
        self._throttled, self._faults = throttled, faults
        return reading


def _pressure(what: str) -> float | None:
    """Per cent of the last ten seconds in which something waited."""
    try:
        line = Path(f"/proc/pressure/{what}").read_text(encoding="ascii").splitlines()[0]
        return float(line.split("avg10=")[1].split()[0])
    except (OSError, IndexError, ValueError):
        return None


def _cpu_mhz() -> float | None:
    kilohertz = _number(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"))
    return None if kilohertz is None else kilohertz / 1000


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
        self._sample()

    def samples(self) -> dict[str, tuple[float | None, ...]]:
        """All readings by name."""
        names = list(dict.fromkeys(name for reading in self._readings for name in reading))
        return {name: tuple(reading.get(name) for reading in self._readings) for name in names}
