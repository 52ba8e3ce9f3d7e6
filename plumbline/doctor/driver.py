"""Required and installed NVIDIA drivers for torch's CUDA version.

The table is NVIDIA's: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1. From
CUDA 11 on, every release of a major version runs on the minimum driver of that major version.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

__all__ = ["LEAST_DRIVERS", "cuda_of_torch", "installed_driver", "is_driver_new_enough", "least_driver"]

LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Minimum driver branch on Linux, by CUDA's major version."""

# torch's wheel depends on a CUDA runtime package: from CUDA 13 on without the major version's suffix.
_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")


def least_driver(cuda: str) -> int | None:
    """Return the minimum driver branch of a CUDA version; `None` if unknown."""
    major = cuda.partition(".")[0]
    return LEAST_DRIVERS.get(int(major)) if major.isdecimal() else None


def is_driver_new_enough(driver: str, cuda: str) -> bool:
    """Return whether a driver supports this CUDA version; false if unparsable."""
    least, branch = least_driver(cuda), re.match(r"\d+", driver)
    return least is not None and branch is not None and int(branch[0]) >= least


def cuda_of_torch() -> str:
    """Return torch's CUDA runtime version; "" for a CPU build."""
    for name in _RUNTIMES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def installed_driver() -> str:
    """Return this machine's NVIDIA driver version; "" without driver."""
    try:
        import pynvml
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()
