"""One trainer per core, which take jobs from one list."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from bench.faults.trainer import Trainer

Job = TypeVar("Job")


def two_cores() -> tuple[int, ...]:
    """Return the first two usable cores, or the only one."""
    return tuple(sorted(os.sched_getaffinity(0)))[:2]


def on_cores(
    root: Path, jobs: Iterable[Job], work: Callable[[Trainer, Job], None], *,
    cores: tuple[int, ...] = (), seconds: float = math.inf,
) -> None:  # fmt: skip
    """Call `work(trainer, job)` for each job in order, with one worker per core.

    No job begins after `seconds`, or once a job has failed: the first error is raised again.
    """
    waiting, lock = list(reversed(list(jobs))), threading.Lock()
    until, failures = time.monotonic() + seconds, list[BaseException]()

    def drive(core: int) -> None:
        try:
            with Trainer(core, root / f"work-{core}") as trainer:
                while not failures and time.monotonic() < until:
                    with lock:
                        if not waiting:
                            return
                        job = waiting.pop()
                    work(trainer, job)
        except BaseException as error:  # noqa: BLE001 - a thread's failure is the run's
            failures.append(error)

    threads = [threading.Thread(target=drive, args=(core,)) for core in cores or two_cores()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
