"""An installed PostgreSQL for the drills' Prefect server, and a lock on its tables."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drills.transcript import wait_until
from plumbline.localstack.process import start, stop
from plumbline.localstack.servers import DATABASE_URL
from plumbline.localstack.services import free_port

__all__ = ["binary", "running_postgres", "start_lock"]

_ROLE = "prefect"
_BINARIES = "usr/lib/postgresql/*/bin"


_LOCK = "BEGIN; LOCK TABLE flow_run, flow_run_state IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT"


def start_lock(seconds: float) -> subprocess.Popen[bytes] | None:
    """Lock the tables of flow runs for so long; `None` without PostgreSQL."""
    if DATABASE_URL not in os.environ:
        return None
    address = os.environ[DATABASE_URL].replace("+asyncpg", "")
    command = [binary("psql"), address, "-c", _LOCK.format(seconds=seconds)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


@contextmanager
def running_postgres(state: Path) -> Iterator[None]:
    """Run PostgreSQL on a free loopback port, and set Prefect's variable for the stacks that start meanwhile."""
    folder, port = state / "postgres", free_port()
    # PostgreSQL refuses to run as root; its own user has to reach the folder.
    user = pwd.getpwnam("postgres").pw_name if os.geteuid() == 0 else None
    _make_cluster(folder, user)
    command = [binary("postgres"), "-D", str(folder), "-h", "127.0.0.1", "-p", str(port), "-k", "", "-c", "fsync=off"]
    if user is not None:
        command = [
            shutil.which("setpriv") or "setpriv",
            f"--reuid={user}",
            f"--regid={user}",
            "--clear-groups",
            *command,
        ]
    child = start("postgres", command, log=state / "postgres.log", environment=dict(os.environ), folder=state)
    try:
        os.environ[DATABASE_URL] = f"postgresql+asyncpg://{_ROLE}@127.0.0.1:{port}/postgres"
        ready = [binary("pg_isready"), "-h", "127.0.0.1", "-p", str(port), "-q"]
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL accepts connections")
        yield
    finally:
        os.environ.pop(DATABASE_URL, None)
        stop([child], grace_seconds=10)


def _make_cluster(folder: Path, user: str | None) -> None:
    if (folder / "PG_VERSION").is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    if user is not None:
        folder.parent.chmod(folder.parent.stat().st_mode | 0o011)
        shutil.chown(folder, user)
    command = [binary("initdb"), "-D", str(folder), "-U", _ROLE, "--auth=trust", "--no-sync", "-E", "UTF8"]
    made = subprocess.run(command, user=user, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    if made.returncode:
        raise SystemExit(f"PostgreSQL's initdb failed: {made.stderr.strip()[-300:]}")


def binary(name: str) -> str:
    """Return the path of a PostgreSQL program, or exit with a hint."""
    result = shutil.which(name) or next((str(path) for path in sorted(Path("/").glob(f"{_BINARIES}/{name}"))), None)
    if result is None:
        raise SystemExit(f"{name} is not installed (Debian: apt-get install postgresql)")
    return result
