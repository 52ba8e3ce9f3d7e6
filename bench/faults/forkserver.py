"""Process with loaded torch, transformers and trainer, which forks a child per training.

The patch of a fault is applied in the child, around an unchanged trainer: as from a `sitecustomize.py` on PYTHONPATH,
without paying for the imports each time. Nothing of torch has computed before a fork, so each child starts like new.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import sys
import traceback
from typing import Any


def _child(job: dict[str, Any]) -> int:
    from bench.faults.catalogue import inject
    from plumbline.train.__main__ import main

    os.environ.update(job["environment"])
    if job["inject"]:
        inject(job["inject"])
    return main(job["arguments"])


def _run(job: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        code = 70
        try:
            file = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 2)
            os.dup2(file, 1)
            code = _child(job)
        except BaseException:  # noqa: BLE001 - a forked child must never return into the server's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _say(answer: object) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def serve(core: int) -> None:
    """Handle jobs as JSON lines; answer each with its exit code."""
    os.sched_setaffinity(0, {core})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import bench.faults.catalogue  # noqa: F401
    import plumbline.train.__main__
    import plumbline.train.job  # noqa: F401
    from plumbline.train.machine import fingerprint

    # The list of some hundred installed packages is read once, not once in each child.
    fingerprint._packages = functools.cache(fingerprint._packages)
    fingerprint._packages()
    _say("ready")
    for line in sys.stdin:
        _say(_run(json.loads(line)))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
