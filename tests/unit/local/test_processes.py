"""Clean-up of descendants in other sessions, orphans, and children of killed parents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest

from plumbline.local.guard import start_guard
from plumbline.local.process import MARK, Child, end_marked, find_by_mark, start, stop
from plumbline.local.servers import reserve_port
from plumbline.local.services import Endpoints, StackSecrets, cloud_environment, inherited
from plumbline.schema.errors import ConfigurationError

# A child that starts a grandchild in a session of its own, deaf to SIGTERM, and then waits.
FAMILY = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("ready", flush=True)
time.sleep(60)
"""


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def ignores(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return bool(mask >> (number - 1) & 1)


def family(folder: Path, mark: str) -> Child:
    environment = {**os.environ, MARK: mark}
    child = start(
        "family", [sys.executable, "-c", FAMILY], log=folder / "family.log", environment=environment, folder=folder
    )
    assert wait_until(lambda: "ready" in child.log.read_text(encoding="utf-8"))
    return child


def test_everything_that_carries_the_mark_is_ended_also_an_orphan_that_does_not_listen(tmp_path: Path) -> None:
    mark = uuid4().hex
    child = family(tmp_path, mark)
    assert len(find_by_mark(mark)) == 2
    child.process.kill()
    child.process.wait()
    assert len(find_by_mark(mark)) == 1
    assert end_marked(mark, grace_seconds=0.2) == []
    assert find_by_mark(mark) == []


def test_the_guard_ends_the_stack_when_its_parent_is_gone(tmp_path: Path) -> None:
    mark = uuid4().hex
    child = family(tmp_path, mark)
    (folder := tmp_path / "stack").mkdir()
    guard = start_guard(mark, folder, dict(os.environ))
    assert guard.stdin is not None
    assert wait_until(lambda: ignores(guard.pid, signal.SIGINT))
    guard.send_signal(signal.SIGINT)
    assert len(find_by_mark(mark)) == 2
    guard.stdin.close()
    assert guard.wait(120) == 0
    child.process.wait(5)
    assert find_by_mark(mark) == []
    assert not folder.exists()


def test_a_child_that_does_not_end_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    child = start(
        "deaf", [sys.executable, "-c", code], log=tmp_path / "log", environment=dict(os.environ), folder=tmp_path
    )
    assert wait_until(lambda: "up" in child.log.read_text(encoding="utf-8"))
    stop([child], grace_seconds=0.2)
    assert (child.alive, child.ending, child.last_lines(1)) == (False, "killed by SIGKILL", "up")


def test_a_watching_child_ends_with_a_parent_that_was_killed() -> None:
    watching = (
        "import os, time; from plumbline.environments.parent_watch import watch_parent; watch_parent(os.environ);"
        "print(os.getpid(), flush=True); time.sleep(60)"
    )
    parent = (
        "import subprocess, sys, time, os; subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdin=subprocess.PIPE,"
        "start_new_session=True, env={**os.environ, 'PLUMBLINE_PARENT_WATCH': 'stdin'}); time.sleep(60)"
    )
    mark = uuid4().hex
    with subprocess.Popen(
        [sys.executable, "-c", parent, watching], stdout=subprocess.PIPE, text=True, env={**os.environ, MARK: mark}
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        holder.kill()
    assert wait_until(lambda: pid not in find_by_mark(mark))


def test_a_port_in_use_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"port {port} is in use"):
            reserve_port(port)


def test_a_reserved_port_goes_to_its_server_alone() -> None:
    port = reserve_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
        pass


def test_a_worker_gets_its_own_clouds_credentials_and_nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AZURE_CLIENT_SECRET", "GOOGLE_APPLICATION_CREDENTIALS", "PREFECT_API_KEY"):
        monkeypatch.setenv(name, "the user's")
    assert "the user's" not in inherited().values()
    endpoints = Endpoints("s3", "blob", StackSecrets("name:password"))
    assert set(cloud_environment("az://devstoreaccount1/box", endpoints)) == {"AZURE_STORAGE_CONNECTION_STRING"}
    assert {name.partition("_")[0] for name in cloud_environment("s3://b/p", endpoints)} == {"AWS"}
    with pytest.raises(ConfigurationError, match="no gs:// endpoint"):
        cloud_environment("gs://b/p", endpoints)
