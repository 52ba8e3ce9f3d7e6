"""A hanging or dear test fails by itself, and the tests after it still run."""

from __future__ import annotations

import re
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
DEAR = """
import subprocess, sys, time, pytest
from tests import cpu_budget

cpu_budget.MAX_CPU_SECONDS = 0.3
BURN = "import time\\nwhile time.process_time() < 0.5: pass"

@pytest.fixture(scope="session")
def shared():
    exec(BURN)

def test_that_computes():
    exec(BURN)
    while time.process_time() < 1: pass

def test_whose_child_computes():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_that_waits():
    time.sleep(0.6)

@pytest.mark.long
def test_that_is_marked():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_of_a_shared_fixture(shared):
    pass
"""


def outcome(pytestconfig: pytest.Config, folder: Path, text: str, *options: str) -> str:
    """Return what pytest prints of tests in a folder without a configuration of its own."""
    (folder / "test_here.py").write_text(text)
    settings = ("-c", str(pytestconfig.rootpath / "pyproject.toml"), "--rootdir", str(folder), *options)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *settings, str(folder)]
    done = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def test_a_hanging_test_fails_and_the_next_one_runs(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    said = outcome(pytestconfig, tmp_path, HANGING, "-o", "timeout=1")
    assert "1 failed, 1 passed" in said
    assert "Timeout (>1.0s) from pytest-timeout" in said


@pytest.mark.long
def test_a_test_above_its_cpu_seconds_fails_and_is_told_where_it_belongs(
    pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    said = outcome(pytestconfig, tmp_path, DEAR, "-p", "tests.cpu_budget")
    assert "2 failed, 3 passed" in said, said
    for name in ("that_computes", "whose_child_computes"):
        assert re.search(rf"FAILED \S+::test_{name}\b", said), said
    assert "mark it `@pytest.mark.long`" in said


def test_every_test_has_a_time_limit(pytestconfig: pytest.Config) -> None:
    assert 0 < float(pytestconfig.getini("timeout")) <= 1200
