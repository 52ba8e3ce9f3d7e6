"""End of all processes started by the launcher, in any session."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from plumbline.environments.processes import started_child

STUBBORN = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(600)"
worker = subprocess.Popen([sys.executable, "-c", deaf], start_new_session=True, stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_worker_in_a_session_of_its_own_that_ignores_the_request_is_ended() -> None:
    with started_child([sys.executable, "-c", STUBBORN], {}, None) as child:
        worker = int(child.stdout.readline())
        assert is_running(worker)
    deadline = time.monotonic() + 120
    while is_running(worker) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(worker)
    assert child.returncode is not None
