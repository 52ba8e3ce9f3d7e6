"""A dead cursor of a connection that waits for SQLite's write lock does not stop the thread that is to release it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sqlite3, sys, threading, time
from tasks.sweeping import sweep_apart

path, how, patience = sys.argv[1], sys.argv[2], float(sys.argv[3])
if how == "apart":
    sweep_apart(0.05)
holder = sqlite3.connect(path, isolation_level=None)
holder.execute("PRAGMA journal_mode = WAL")
holder.execute("CREATE TABLE one (number UNIQUE)")
waiter = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=patience)

def leave_garbage():
    cursor = waiter.cursor()
    try:
        cursor.execute("INSERT INTO one VALUES (1)")
        cursor.execute("INSERT INTO one VALUES (1)")
    except sqlite3.IntegrityError:
        pass
    cycle = [cursor]
    cycle.append(cycle)

def write():
    try:
        waiter.execute("BEGIN IMMEDIATE")
        print("written", flush=True)
    except sqlite3.OperationalError as error:
        print(error, flush=True)

leave_garbage()
holder.execute("BEGIN IMMEDIATE")
thread = threading.Thread(target=write)
thread.start()
time.sleep(0.5)
kept = [[] for _ in range(2_000_000)]
holder.execute("COMMIT")
thread.join()
"""


@pytest.mark.parametrize(("how", "patience", "said"), [("anywhere", 2, "database is locked"), ("apart", 60, "written")])
def test_garbage_is_no_deadlock_with_a_waiting_writer(tmp_path: Path, how: str, patience: int, said: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "one.db"), how, str(patience)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split("\n")[0] == said
