"""Cache disk of one platform that is full when its data is staged: for one attempt, or for good."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drills.alerted_rounds import (
    alerted_round,
    alerted_suite,
    expect_retried,
    expect_unavailable,
    until_attempt_failed,
    worker_environment,
)
from drills.transcript import expect, say
from tests.flows.local_stack import RunningStack

__all__ = ["DRILLS"]

_ROOMY_MIB = 256
_SMALL_MIB = 32
"""Less than the 64 MiB that staging leaves free, and enough for a record."""


def disk_full_briefly(stack: RunningStack) -> None:
    """The cache disk of aws has no free byte during the first attempt: the second attempt passes."""
    suite = alerted_suite(stack, "drill-disk-brief", 121, start_seconds=120, run_seconds=200, retries=2)
    with _cache_disk(stack, _ROOMY_MIB) as disk:
        ballast = _fill(disk)
        with alerted_round(stack, suite) as (round_, hook):
            until_attempt_failed(stack, round_, "aws")
            ballast.unlink()
            say("the disk is free again")
            expect_retried(stack, round_, hook, "no room left")


def disk_full(stack: RunningStack) -> None:
    """The cache disk of aws has no room for its data: aws is unavailable, azure is judged, one alert is sent."""
    suite = alerted_suite(stack, "drill-disk-full", 122, start_seconds=120, run_seconds=200, retries=1)
    with _cache_disk(stack, _SMALL_MIB), alerted_round(stack, suite) as (round_, hook):
        # The last attempt's record names the reason: it is stored, and not judged.
        expect_unavailable(stack, round_, hook, "are needed", failed_records=1)


@contextmanager
def _cache_disk(stack: RunningStack, mebibytes: int) -> Iterator[Path]:
    """Mount a file system of this size as the cache of aws; its worker uses it inside the block."""
    folder = stack.stack.state / "cache-disk"
    folder.mkdir(exist_ok=True)
    options = ["-t", "tmpfs", "-o", f"size={mebibytes}m,mode=755", "plumbline-drill", str(folder)]
    done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(
            f"this drill cannot run here: it mounts a tmpfs, which only root may: {done.stderr.strip()}"
        )
    try:
        with worker_environment(stack, "aws", {"PLUMBLINE_CACHE": str(folder)}):
            say(f"the cache of aws is a disk of {mebibytes} MiB")
            yield folder
    finally:
        # Lazily: after a failed drill a training may still have files open.
        subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=True)


def _fill(disk: Path) -> Path:
    """Write one file until the disk is full; return the file."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        while free := shutil.disk_usage(disk).free:
            file.write(bytes(min(free, 8 << 20)))
            file.flush()
    expect(not shutil.disk_usage(disk).free, "the cache disk of aws has no free byte")
    return ballast


DRILLS = (disk_full_briefly, disk_full)
