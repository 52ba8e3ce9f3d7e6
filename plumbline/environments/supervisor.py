"""Parent of a team's command: everything that the command started ends with it, also what has left its session.

`python -m plumbline.environments.supervisor COMMAND [ARGUMENT ...]` exits with the command's code, or with 128 and the
number of the signal that ended it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from plumbline.environments.parent_watch import PARENT_WATCH, watch_parent
from plumbline.environments.processes import adopt_orphans, descendants, kill

SIGNALLED = 128
"""An exit code above it is the number of a signal."""
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.2
_ROUNDS = 20


def main(command: list[str]) -> int:
    """Run the command without an input; return its exit code."""
    adopt_orphans()
    watch_parent(os.environ)
    is_stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_stopped.set())
    variables = {name: value for name, value in os.environ.items() if name != PARENT_WATCH}
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=variables)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: cannot be started: {error.strerror}\n")
        return SIGNALLED - 1
    try:
        code = _waited(child, is_stopped)
    finally:
        left = _end_family(child)
    if left:
        sys.stderr.write(f"plumbline: the command left {left} process{'es' * (left > 1)} running, which were ended\n")
    return SIGNALLED - code if code < 0 else code


def _waited(child: subprocess.Popen[bytes], is_stopped: threading.Event) -> int:
    """Wait for the end; a command that is asked to stop, and does not, is killed."""
    asked = 0.0
    while child.poll() is None:
        if is_stopped.is_set():
            if not asked:
                asked = time.monotonic()
                child.send_signal(signal.SIGTERM)
            elif time.monotonic() - asked > _GRACE_SECONDS:
                child.kill()
        with suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
    return child.returncode


def _end_family(child: subprocess.Popen[bytes]) -> int:
    """Kill what the command has left; return how many processes that were."""
    ended: set[int] = set()
    for _ in range(_ROUNDS):  # a process may fork between the search and the signal
        _reap(child)
        if not (family := descendants(os.getpid())):
            break
        ended |= family.keys()
        kill(family)
        time.sleep(_POLL_SECONDS / 4)
    return len(ended)


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Collect adopted processes that have ended."""
    if child.returncode is None:
        return
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
