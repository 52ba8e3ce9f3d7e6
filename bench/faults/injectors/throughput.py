"""What makes a training slow, and leaves its numbers alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from torch.nn import functional
from torch.optim import adamw

from bench.faults.catalogue import Entry, fault
from bench.faults.injectors.patching import wrap_method
from plumbline.train import batches, engine, speed
from plumbline.train.machine import sampler


@fault("loader", "speed")
def slow_storage() -> None:
    """Rows come late from the disk."""
    wrap_method(batches._Encoded, "_fetch", lambda fetch: lambda *args: (time.sleep(0.008), fetch(*args))[1])


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@fault("loader", "speed")
def slow_collate() -> None:
    """Batches are put together slowly."""
    wrap_method(batches, "_collate", lambda collate: lambda batch: (_spin(0.008), collate(batch))[1])


@fault("transfer", "speed")
def slow_transfer() -> None:
    """The copy to the device takes long."""

    def wrap(pieces: Any) -> Any:
        def moved(self: Any, batch: Any) -> Any:
            _spin(0.008)
            yield from pieces(self, batch)

        return moved

    wrap_method(engine.Engine, "_micro_batches", wrap)


@fault("software", "speed")
def slower_kernel() -> None:
    """A kernel of the new release takes longer."""
    linear = functional.linear

    def twice(x: Any, w: Any, b: Any = None) -> Any:
        linear(x.detach(), w.detach())
        linear(x.detach(), w.detach())
        return linear(x, w, b)

    functional.linear = twice


@fault("software", "speed")
def slower_optimizer() -> None:
    """The optimizer does needless work."""
    wrap_method(
        adamw.AdamW, "step", lambda step: lambda self, *args, **kwargs: (_spin(0.008), step(self, *args, **kwargs))[1]
    )


def _helper(work: Callable[[int], None]) -> None:
    """A process beside the training, on its core, which ends with it."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            while os.getppid() == parent:
                work(parent)
        finally:
            os._exit(0)


@fault("contention", "speed")
def cpu_hog() -> None:
    """Another process computes on the same core."""
    _helper(lambda _: _spin(0.05))


@fault("throttling", "speed")
def cpu_quota() -> None:
    """The process gets two thirds of the time, as under a quota, and the kernel counts what it held back."""

    def hold(parent: int) -> None:
        time.sleep(0.02)
        os.kill(parent, signal.SIGSTOP)
        time.sleep(0.01)
        os.kill(parent, signal.SIGCONT)

    _helper(hold)
    wrap_method(sampler.Host, "read", lambda read: lambda self: read(self) | {"cgroup_throttled": 1 / 3})


@fault("contention", "speed")
def memory_pressure() -> None:
    """Memory is short: the process waits for reclaim, and the kernel's pressure file says so; both simulated."""

    def reclaim(parent: int) -> None:
        time.sleep(0.02)
        os.kill(parent, signal.SIGSTOP)
        time.sleep(0.008)
        os.kill(parent, signal.SIGCONT)

    _helper(reclaim)
    wrap_method(sampler, "_pressure", lambda read: lambda what: 0.28 if what == "memory" else read(what))


def _slowed(share: float) -> None:
    """Everything that the main thread does takes longer by this share."""
    signal.signal(signal.SIGALRM, lambda *_: _spin(0.004 * share))
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.004 * (1 + share), 0.004 * (1 + share))


@fault("slow-device", "speed")
def slow_device() -> None:
    """The device is slow throughout, in training and outside of it."""
    _slowed(0.35)


@fault("throttling", "speed")
def thermal_throttle() -> None:
    """The device lowers its clock while it trains, and its sensors say so."""

    def wrap(steps: Any) -> Any:
        def stepped(self: Any) -> Any:
            _slowed(0.35)
            try:
                yield from steps(self)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)

        return stepped

    wrap_method(speed.SpeedRun, "_steps", wrap)
    wrap_method(
        sampler.Host,
        "read",
        lambda read: lambda self: read(self) | {"gpu_throttle_reasons": 64.0, "gpu_clock_mhz": 900.0},
    )


ROWS = (Entry("as-fast-as-before", "throughput", "", workload="speed", about="Nothing; the machine alone varies."),)
