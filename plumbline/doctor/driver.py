"""The NVIDIA driver that a CUDA build of torch needs, and the one that a machine has.

The table is NVIDIA's: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1. From
CUDA 11 on, every release of a major version runs on the least driver of that major version.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

__all__ = ["LEAST_DRIVERS", "cuda_of_torch", "installed_driver", "is_driver_new_enough", "least_driver"]

LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""By CUDA's major version: the oldest driver branch on Linux."""

# A wheel of torch brings the CUDA runtime as a package of its own: from CUDA 13 on without the major version's suffix.
_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")


def least_driver(cuda: str) -> int | None:
    """Return the oldest driver branch for a CUDA version such as `13.0.96`; `None` if it is not in the table."""
    major = cuda.partition(".")[0]
    return LEAST_DRIVERS.get(int(major)) if major.isdecimal() else None


def is_driver_new_enough(driver: str, cuda: str) -> bool:
    """Return whether a driver such as `580.65.06` runs this CUDA version; a version that cannot be read does not."""
    least, branch = least_driver(cuda), re.match(r"\d+", driver)
    return least is not None and branch is not None and int(branch[0]) >= least


def cuda_of_torch() -> str:
    """Return the version of the CUDA runtime that was installed with torch; empty for a CPU build."""
    for name in _RUNTIMES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


def installed_driver() -> str:
    """Return the version of this machine's NVIDIA driver; empty where no driver answers."""
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
