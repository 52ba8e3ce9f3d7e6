"""Guard process that stops the local stack when its parent dies.

`python -m plumbline.local.guard MARK FOLDER` holds the reading end of a pipe from the command that started it. The
pipe closes when that command ends, for any reason.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from plumbline.environments.python_modules import module_command
from plumbline.local.process import MARK, end_marked

_GRACE_SECONDS = 3.0


def start_guard(mark: str, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a guard that ends all marked processes when its stdin closes."""
    return subprocess.Popen(
        [*module_command(sys.executable, "plumbline.local.guard"), mark, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={key: value for key, value in environment.items() if key != MARK},
        start_new_session=True,
    )


def _main(mark: str, folder: str) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(sys.stdin.fileno(), 1):
        pass
    left = end_marked(mark, grace_seconds=_GRACE_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
