"""A killed flow run's environment, which Prefect keeps in a file, does not stay on the machine."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plumbline.data.staging.scratch import WORKSPACE_PREFIX, sweep_workspaces


def leftover(parent: Path, name: str, *, age: float = 3600.0) -> Path:
    folder = parent / f"{WORKSPACE_PREFIX}{name}"
    folder.mkdir()
    (folder / "workspace.json").write_text('{"environment": {"AWS_SECRET_ACCESS_KEY": "planted"}}')
    when = time.time() - age
    os.utime(folder, (when, when))
    return folder


def test_the_folder_of_a_dead_flow_run_is_removed_and_that_of_a_running_one_stays(tmp_path: Path) -> None:
    dead, young = leftover(tmp_path, "dead"), leftover(tmp_path, "young", age=1.0)
    running = leftover(tmp_path, "running")
    supervisor = [sys.executable, "-c", "print(flush=True); input()", str(running / "supervisor.json")]
    with subprocess.Popen(supervisor, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline()  # just started, /proc may not know its command yet
        sweep_workspaces(tmp_path)
        assert [path.exists() for path in (dead, young, running)] == [False, True, True]
        child.communicate(b"\n", timeout=300)
    sweep_workspaces(tmp_path)
    assert not running.exists()


def test_prefect_still_names_its_folders_so() -> None:
    """A new name in Prefect has to be swept as well."""
    starter = pytest.importorskip("prefect.runner._workspace_starter", reason="Prefect 3.6.29 has no such folders")
    assert f'prefix="{WORKSPACE_PREFIX}"' in inspect.getsource(starter)
