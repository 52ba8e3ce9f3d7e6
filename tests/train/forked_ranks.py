"""Processes of one training, forked from a server that has imported torch once; several end as torchrun ends them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path

import torch

from plumbline.train.__main__ import main
from tests.cpu_budget import charge

_SECONDS = 300.0
_CONTEXT = multiprocessing.get_context("forkserver")
Around = Callable[..., AbstractContextManager[None]]


def _rank(rank: int, world: int, port: int, around: Around, folder: Path) -> None:
    """Run the trainer's command as one rank of several."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True",
    }  # fmt: skip
    _command(rank, around, folder)


def _command(rank: int, around: Around, folder: Path) -> None:
    """Run the trainer's command with the rank's arguments in `folder`, within `around(rank, folder)`."""
    torch.set_num_threads(1)
    log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        with around(rank, folder):
            code = main((folder / f"arguments-{rank}").read_text().split("\n"))
        raise SystemExit(code)
    finally:
        (folder / f"cpu-{rank}").write_text(str(sum(os.times()[:4])))


def _charge(folder: Path) -> None:
    """Charge the CPU seconds of the ranks that were not killed to the running test."""
    for path in folder.glob("cpu-*"):
        charge(float(path.read_text()))
        path.unlink()


def in_new_process(function: Callable[..., None], *arguments: object) -> None:
    """Call the function in a process without Prefect, whose sender of events ends forked processes with code 1."""
    process = _CONTEXT.Process(target=function, args=arguments)
    process.start()
    process.join(_SECONDS)
    assert process.exitcode == 0


def run_alone(arguments: Sequence[str], folder: Path, around: Around) -> int | None:
    """Train with one process; return its exit code, negative after a signal."""
    (folder / "arguments-0").write_text("\n".join(arguments))
    process = _CONTEXT.Process(target=_command, args=(0, around, folder))
    try:
        process.start()
        process.join(_SECONDS)
        assert process.exitcode is not None, "the training hangs"
        return process.exitcode
    finally:
        process.kill()
        process.join()
        _charge(folder)


def run_ranks(arguments: Sequence[str], folder: Path, around: Around, *, world: int = 2) -> list[int | None]:
    """Train with `world` processes; return their exit codes, negative after a signal.

    As with torchrun, the store lives outside the ranks, and once a rank fails, the others get SIGTERM.
    """
    for rank in range(world):
        (folder / f"arguments-{rank}").write_text("\n".join(arguments))
    store = torch.distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=_SECONDS)
    )
    ranks = [_CONTEXT.Process(target=_rank, args=(rank, world, store.port, around, folder)) for rank in range(world)]
    try:
        for process in ranks:
            process.start()
        left = {process.sentinel: process for process in ranks}
        while left:
            ended = multiprocessing.connection.wait(list(left), _SECONDS)
            assert ended, "a rank hangs"
            failed = [left.pop(sentinel).exitcode for sentinel in ended]
            for process in left.values() if any(failed) else ():
                os.kill(process.pid or 0, signal.SIGTERM)
        return [process.exitcode for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.join()
        _charge(folder)
