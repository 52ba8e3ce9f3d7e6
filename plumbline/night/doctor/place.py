"""Check of a worker's machine: driver and training stack against expectations.

The table is NVIDIA's: https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1. From
CUDA 11 on, every release of a major version runs on the minimum driver of that major version.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import AwareDatetime

from plumbline import __version__
from plumbline.environments.selfcheck import installed_torch
from plumbline.night.doctor.checks import CheckResult
from plumbline.night.doctor.stores import LEAST_BYTES, room
from plumbline.schema.base import Model
from plumbline.schema.errors import ExitCode
from plumbline.schema.evidence import SelfcheckEvidence
from plumbline.schema.fingerprint import accelerator_names, accelerator_text

LEAST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""Minimum driver branch on Linux, by CUDA's major version."""

# torch's wheel depends on a CUDA runtime package: from CUDA 13 on without the major version's suffix.
_RUNTIMES = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu11")


def least_driver(cuda: str) -> int | None:
    """Return the minimum driver branch for a CUDA version; `None` if unknown."""
    major = cuda.partition(".")[0]
    return LEAST_DRIVERS.get(int(major)) if major.isdecimal() else None


def is_driver_new_enough(driver: str, cuda: str) -> bool:
    """Return whether a driver supports this CUDA version; `False` if unparsable."""
    least, branch = least_driver(cuda), re.match(r"\d+", driver)
    return least is not None and branch is not None and int(branch[0]) >= least


def cuda_of_torch() -> str:
    """Return torch's CUDA version, or "" for a CPU build."""
    for name in _RUNTIMES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return ""


_SKEW_SECONDS = 30.0
_QUERY = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]


class Report(Model):
    """Facts about a worker's machine."""

    plumbline: str
    torch: str = ""
    gpus: tuple[str, ...] = ()
    cuda: str = ""
    """Version of torch's CUDA runtime; empty for a CPU build."""
    driver: str = ""
    """Version of the NVIDIA driver."""
    free_bytes: int
    now: AwareDatetime
    stores: tuple[CheckResult, ...] = ()
    selfcheck: SelfcheckEvidence | None = None
    """Of the training stack; `None` on a controller."""
    trainer: str = ""
    """Why the training environment cannot train; empty if it can, or on a controller."""
    num_cores: int = 0
    cpu_quota: float | None = None
    """Cores that a control group grants to a training; `None` without a quota."""


class ExpectedStack(Model):
    """Expected facts about a worker's machine. `torch` is the reference platform's version."""

    plumbline: str = __version__
    torch: str = ""
    accelerator: str = ""
    gpus: int = 1


def look_here(
    folder: Path,
    now: datetime,
    stores: tuple[CheckResult, ...] = (),
    selfcheck: SelfcheckEvidence | None = None,
    cpu_quota: float | None = None,
) -> Report:
    """Collect this machine's report, without importing torch."""
    there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free
    gpus, driver = installed_gpus()
    return Report(
        plumbline=__version__, torch=installed_torch(), gpus=gpus, cuda=cuda_of_torch(), driver=driver,
        free_bytes=free, now=now, stores=stores, selfcheck=selfcheck, num_cores=os.cpu_count() or 0,
        cpu_quota=cpu_quota,
    )  # fmt: skip


def installed_gpus() -> tuple[tuple[str, ...], str]:
    """Return the NVIDIA GPUs' names, and the driver version or ""."""
    try:
        asked = subprocess.run(_QUERY, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return (), ""
    lines = [line.rpartition(", ") for line in asked.stdout.splitlines() if line.strip()]
    lines = lines if asked.returncode == 0 else []
    return tuple(name.strip() for name, _, _ in lines), lines[0][2].strip() if lines else ""


def examine_report(
    platform: str, report: Report, expected: ExpectedStack, asked: datetime, answered: datetime
) -> Iterator[CheckResult]:
    """Yield check results of a worker's report. Times are the controller's. Pure."""
    yield from (store.replace(where=f"{platform}'s worker, {store.where}") for store in report.stores)
    hint = "start a time service there (chrony, systemd-timesyncd)"
    yield examine_clock(f"{platform}'s clock", report.now, asked, answered, hint)
    # Room for staged data, records and checkpoints.
    yield room(f"{platform}'s disk", report.free_bytes, LEAST_BYTES + sum(store.size for store in report.stores))
    yield _one(
        f"{platform}'s plumbline",
        report.plumbline == expected.plumbline,
        f"version {report.plumbline}, here it is {expected.plumbline}",
        "install the same version on every worker",
    )
    yield _one(
        f"{platform}'s torch",
        bool(report.torch) and report.torch.partition("+")[0] == (expected.torch or report.torch).partition("+")[0],
        f"version {report.torch or '(none)'}, the reference platform has {expected.torch or '(none)'}",
        "install from the same lock file on every worker",
    )
    yield _accelerator(platform, report, expected)
    if report.cpu_quota is not None:
        # No fault by itself: the record measures how long the quota held a training back.
        text = f"a control group's quota holds trainings to {report.cpu_quota:g} of {report.num_cores} cores"
        yield CheckResult(where=f"{platform}'s processor", what=text, well=True)
    if report.trainer:
        hint = "the line says what the environment lacks; try it there: `plumbline train --selfcheck`"
        yield _one(f"{platform}'s training environment", False, report.trainer, hint)
    if report.selfcheck is not None:
        yield _stack(platform, report.selfcheck)
    # A platform of any device needs a driver only if it has a GPU; torch's CUDA build runs on a CPU, too.
    is_gpu = bool(report.gpus or report.driver) if not expected.accelerator else expected.accelerator != "cpu"
    if report.cuda and is_gpu:
        yield _driver(platform, report)


def _accelerator(platform: str, report: Report, expected: ExpectedStack) -> CheckResult:
    wanted = expected.accelerator
    devices = ", ".join(report.gpus) or "no GPU"
    names = accelerator_names(wanted)
    num_right = sum(name in names for name in report.gpus[: expected.gpus]) if wanted else len(report.gpus)
    # Process N trains on GPU N, so that the first GPUs count; a platform of any device may have none.
    right = wanted == "cpu" or (not wanted and not report.gpus) or num_right >= expected.gpus
    count = f"{expected.gpus} x " if expected.gpus > 1 else ""
    hint = "check that the driver is loaded, and that the cloud provided the requested machine"
    text = f"{devices}; expected: {count}{accelerator_text(wanted, names) or 'any'}"
    return _one(f"{platform}'s accelerator", right, text, hint)


def _stack(platform: str, selfcheck: SelfcheckEvidence) -> CheckResult:
    """Convert a self-check's result; `unknown` is no fault of the machine."""
    what = {
        "pass": "computes the right numbers",
        "unknown": f"not checked: {selfcheck.at or 'this release has no digests for its versions'}",
        "drift": f"computes wrong numbers: {selfcheck.at}",
    }[selfcheck.verdict]
    hint = "run `plumbline train --selfcheck` there; reinstall from the lock file, or replace the device"
    return _one(f"{platform}'s training stack", selfcheck.verdict != "drift", what, hint)


def _driver(platform: str, report: Report) -> CheckResult:
    """Check that the driver supports torch's CUDA version."""
    right = is_driver_new_enough(report.driver, report.cuda)
    least = least_driver(report.cuda)
    needs = f"needs {least} or newer" if least is not None else "is unknown to this version of Plumbline"
    text = f"version {report.driver or '(none)'}; torch's CUDA {report.cuda} {needs}"
    return _one(
        f"{platform}'s driver", right, text, "install a newer NVIDIA driver, or a torch build for an older CUDA"
    )


def examine_clock(where: str, remote_time: datetime, asked: datetime, answered: datetime, hint: str) -> CheckResult:
    """Compare another clock with ours, read before and after. Pure."""
    early = (asked - remote_time).total_seconds()
    late = (remote_time - answered).total_seconds()
    skew = max(early, late, 0.0)
    way = "behind" if early > late else "ahead of"
    text = f"{skew:.0f} s {way} this machine's" if skew > _SKEW_SECONDS else "agrees with this machine's"
    return _one(where, skew <= _SKEW_SECONDS, text, hint)


def _one(where: str, well: bool, what: str, hint: str) -> CheckResult:
    return CheckResult(
        where=where, what=what, well=well, hint="" if well else hint, code=0 if well else int(ExitCode.USAGE)
    )
