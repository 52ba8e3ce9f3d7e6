"""Selfcheck of a worker's training stack, and its CPU quota, in a trainer's process."""

from __future__ import annotations

import subprocess
import sys

from plumbline.errors import InvalidInputError
from plumbline.launch import trainer_environment
from plumbline.schema.base import read_model
from plumbline.schema.evidence import SelfcheckEvidence

__all__ = ["check_stack", "read_cpu_quota"]

_TIMEOUT_SECONDS = 90.0
"""The import of torch and transformers takes most of the time, the training about a second."""

_QUOTA = "from plumbline.train.control_groups import quota_use; print(quota_use().cores or '')"
_QUOTA_SECONDS = 20.0


def read_cpu_quota() -> float | None:
    """Return the CPU quota of a training on this machine, in cores; `None` without one."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _QUOTA], env=trainer_environment(), capture_output=True, text=True,
            timeout=_QUOTA_SECONDS, check=False,
        )  # fmt: skip
        return float(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None


def check_stack() -> SelfcheckEvidence:
    """Train the first step of the shipped training; `unknown` if the trainer gives no answer."""
    command = [sys.executable, "-m", "plumbline.train.selfcheck", "--first-step"]
    try:
        done = subprocess.run(
            command, env=trainer_environment(), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return SelfcheckEvidence(verdict="unknown", at=f"no answer after {_TIMEOUT_SECONDS:g} s")
    except OSError as error:
        return SelfcheckEvidence(verdict="unknown", at=f"the trainer could not be started: {error.strerror}")
    try:
        return read_model(SelfcheckEvidence, done.stdout.encode(), where="selfcheck")
    except InvalidInputError:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return SelfcheckEvidence(verdict="unknown", at=f"the trainer failed: {last}"[:500])
