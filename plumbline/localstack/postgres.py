"""An installed PostgreSQL for the local stack's Prefect server, in place of SQLite."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from plumbline.errors import ConfigurationError

__all__ = ["connection_url", "make_database", "postgres_command", "postgres_user"]

_PLACES = "/usr/lib/postgresql/*/bin"
_ROLE = "prefect"
_INITDB_SECONDS = 120


def connection_url(port: int) -> str:
    """Where Prefect's server finds its database."""
    return f"postgresql+asyncpg://{_ROLE}@127.0.0.1:{port}/postgres"


def postgres_user() -> str | None:
    """The user to run as: PostgreSQL refuses to be root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError as error:
        mend = "run as another user, or install PostgreSQL's package, which makes its own"
        raise ConfigurationError("PostgreSQL does not run as root", key="--database", mend=mend) from error


def postgres_command(port: int, folder: Path) -> list[str]:
    """The server, on loopback alone, with its socket nowhere."""
    return [_binary("postgres"), "-D", str(folder), "-h", "127.0.0.1", "-p", str(port), "-k", ""]


def make_database(folder: Path, environment: Mapping[str, str]) -> None:
    """Make the cluster in `folder`, unless it is there."""
    if (folder / "PG_VERSION").is_file():
        return
    user = postgres_user()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    if user is not None:
        shutil.chown(folder, user)
    # Nobody but this machine's users reaches the port, and nothing but run states lies in it.
    command = [_binary("initdb"), "-D", str(folder), "-U", _ROLE, "--auth=trust", "--no-sync", "-E", "UTF8"]
    made = subprocess.run(
        command, user=user, env=dict(environment), cwd="/", capture_output=True, text=True,
        timeout=_INITDB_SECONDS, check=False,
    )  # fmt: skip
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        why = (made.stderr.strip() or made.stdout.strip() or "no message").splitlines()[-1]
        mend = "may its user enter that folder? name another with --state"
        raise ConfigurationError(f"the database could not be made: {why}", where=str(folder), mend=mend)


def _binary(name: str) -> str:
    found = shutil.which(name) or next((str(path) for path in sorted(Path("/").glob(f"{_PLACES[1:]}/{name}"))), None)
    if found is None:
        mend = "install PostgreSQL (Debian: apt-get install postgresql), or use --database sqlite"
        raise ConfigurationError("is not installed", where=name, key="--database", mend=mend)
    return found
