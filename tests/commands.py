"""Programs that a test starts and waits for."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def run(
    *command: object, code: int | None = 0, seconds: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program; return it with its output, after a check of its exit code unless that is `None`."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=seconds, **options)
    assert code is None or done.returncode == code, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
    return done


def run_plumbline(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `plumbline WORDS`."""
    return run(sys.executable, "-m", "plumbline", *words, **options)


def error_line(*command: object, code: int = 2, **options: Any) -> str:
    """Run a program that refuses; return the only line of its standard error."""
    lines = run(*command, code=code, **options).stderr.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]
