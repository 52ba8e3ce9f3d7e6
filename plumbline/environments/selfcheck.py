"""Self-check of a training environment: train one bundled step, compare bits."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from plumbline.environments.interpreter import refuse_crash, trainer_python
from plumbline.environments.launch import trainer_environment
from plumbline.environments.python_modules import code_command
from plumbline.schema.base import read_model
from plumbline.schema.errors import InvalidInputError, PlumblineError
from plumbline.schema.evidence import SelfcheckEvidence

_TIMEOUT_SECONDS = 90.0
"""The import of torch and transformers takes most of the time, the training about a second."""


def installed_torch() -> str:
    """Return this interpreter's torch version, or ""."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def check_trainer(python: str = "") -> tuple[str, SelfcheckEvidence | None, str]:
    """Return torch's version, the self-check's result, and why training is impossible.

    `python` is a platform's key: the interpreter of its trainings, or its environment's folder.
    """
    if not python:
        try:
            return installed_torch(), *_check_stack(Path(sys.executable), {})
        except PlumblineError as error:
            return installed_torch(), None, str(error)
    try:
        with trainer_python(python) as team:
            return team.versions["torch"], *_check_stack(team.python, team.variables(), team.folder)
    except PlumblineError as error:
        return "", None, str(error)


def _check_stack(
    python: Path, variables: dict[str, str], folder: Path | None = None
) -> tuple[SelfcheckEvidence | None, str]:
    """Train one bundled step; report failure if the trainer gives no result."""
    command = code_command(python, "from plumbline.train.__main__ import first_step; sys.exit(first_step())")
    try:
        done = subprocess.run(
            command, env=trainer_environment(variables), capture_output=True, text=True, timeout=_TIMEOUT_SECONDS,
            check=False, cwd=folder,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return SelfcheckEvidence(verdict="unknown", at=f"no answer after {_TIMEOUT_SECONDS:g} s"), ""
    except OSError as error:
        return None, f"cannot be started: {error.strerror}"
    refuse_crash(done.returncode, python, trainer_environment(variables))
    try:
        return read_model(SelfcheckEvidence, done.stdout.encode(), where="selfcheck"), ""
    except InvalidInputError:
        return None, (done.stderr.strip().splitlines() or ["no output"])[-1].removeprefix("plumbline: ")[:500]
