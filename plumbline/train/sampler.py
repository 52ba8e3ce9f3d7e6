"""The 1 Hz sampler: what the device and the host were doing while the training was measured."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

from plumbline.train.host import Host, Reading

__all__ = ["Sampler"]

_INTERVAL = 1.0
_MOST = 3600


def _foreign(num_processes: int) -> int:
    """Of the processes on a GPU those that are not this one.

    They are counted, not compared: NVML names them by the host's numbers, and in a container this process has another.
    """
    return max(0, num_processes - 1)


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
            # `pynvml`, or `pynvml.nvml` where the older package of that name is installed.
            if type(error).__module__.partition(".")[0] != "pynvml":
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
