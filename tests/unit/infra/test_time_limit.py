"""A hanging test ends by itself, and the tests after it still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HANGING = """
import threading

def test_that_hangs():
    threading.Event().wait()

def test_after_it():
    pass
"""


def test_a_hanging_test_fails_and_the_next_one_runs(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    (tmp_path / "test_hanging.py").write_text(HANGING)
    settings = ("-c", str(pytestconfig.rootpath / "pyproject.toml"), "--rootdir", str(tmp_path), "-o", "timeout=1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *settings, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>1.0s) from pytest-timeout" in done.stdout


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 1200
