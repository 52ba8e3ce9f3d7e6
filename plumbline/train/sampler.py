"""Sampler of device and host activity, once a second during a measurement."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import torch
from typing_extensions import Self

from plumbline.train.host import Host, Reading

_INTERVAL = 1.0
_MOST = 3600


def _foreign(num_processes: int) -> int:
    """Return the number of foreign processes on a GPU.

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
            # `pynvml`, or `pynvml.nvml` of the older package.
            if type(error).__module__.partition(".")[0] != "pynvml":
                raise
    return readers


class Sampler:
    """Context manager that samples once a second in a thread."""

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
        """Return all readings by name."""
        names = list(dict.fromkeys(name for reading in self._readings for name in reading))
        return {name: tuple(reading.get(name) for reading in self._readings) for name in names}
