"""Lock on the tables of the Prefect server."""

from __future__ import annotations

import subprocess

from plumbline.local.stack import Stack

__all__ = ["start_lock"]

_LOCK = "BEGIN; LOCK TABLE flow_run, flow_run_state IN ACCESS EXCLUSIVE MODE; SELECT pg_sleep({seconds}); COMMIT"


def start_lock(stack: Stack, seconds: float) -> subprocess.Popen[bytes]:
    """Start a process that locks the tables of flow runs for `seconds`."""
    database = stack.servers.database
    command = [database.program("psql"), database.url.replace("+asyncpg", ""), "-c", _LOCK.format(seconds=seconds)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)
