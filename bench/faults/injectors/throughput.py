"""What makes a training slow, and leaves its numbers alone."""

import os
import signal
import time

from torch.nn import functional
from torch.optim import adamw

from bench.faults.catalogue import Entry, fault
from bench.faults.injectors.patching import of_output, patch, replaces
from plumbline.train import batches, engine, speed
from plumbline.train.machine import sampler


@fault("loader", "speed")
def slow_storage():
    """Rows come late from the disk."""
    patch(batches._Encoded, "_fetch", lambda plain, *given: (time.sleep(0.008), plain(*given))[1])


def _spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@fault("loader", "speed")
def slow_collate():
    """Batches are put together slowly."""
    patch(batches, "_collate", lambda plain, batch: (_spin(0.008), plain(batch))[1])


@fault("transfer", "speed")
@replaces(engine.Engine, "_micro_batches")
def slow_transfer(plain, self, batch):
    """The copy to the device takes long."""
    _spin(0.008)
    yield from plain(self, batch)


@fault("software", "speed")
@replaces(functional, "linear")
def slower_kernel(plain, x, w, b=None):
    """A kernel of the new release takes longer."""
    for _ in range(2):
        plain(x.detach(), w.detach())
    return plain(x, w, b)


@fault("software", "speed")
def slower_optimizer():
    """The optimizer does needless work."""
    patch(adamw.AdamW, "step", lambda plain, *given, **named: (_spin(0.008), plain(*given, **named))[1])


def _helper(work):
    """A process beside the training, on its core, which ends with it."""
    parent = os.getpid()
    if os.fork() == 0:
        try:
            while os.getppid() == parent:
                work(parent)
        finally:
            os._exit(0)


def _hold(seconds):
    """Hold the training for so long after each 20 ms."""

    def hold(parent):
        time.sleep(0.02)
        os.kill(parent, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(parent, signal.SIGCONT)

    _helper(hold)


def _read(**readings):
    """Let the sensors of the host read these, too."""
    patch(sampler.Host, "read", of_output(lambda read: read | readings))


@fault("contention", "speed")
def cpu_hog():
    """Another process computes on the same core."""
    _helper(lambda _: _spin(0.05))


@fault("throttling", "speed")
def cpu_quota():
    """The process gets two thirds of the time, as under a quota, and the kernel counts what it held back."""
    _hold(0.01)
    _read(cgroup_throttled=1 / 3)


@fault("contention", "speed")
def memory_pressure():
    """Memory is short: the process waits for reclaim, and the kernel's pressure file says so; both simulated."""
    _hold(0.008)
    patch(sampler, "_pressure", lambda plain, what: 0.28 if what == "memory" else plain(what))


def _slowed(share):
    """Everything that the main thread does takes longer by this share."""
    signal.signal(signal.SIGALRM, lambda *_: _spin(0.004 * share))
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.004 * (1 + share), 0.004 * (1 + share))


@fault("slow-device", "speed")
def slow_device():
    """The device is slow throughout, in training and outside of it."""
    _slowed(0.35)


@fault("throttling", "speed")
def thermal_throttle():
    """The device lowers its clock while it trains, and its sensors say so."""

    def stepped(plain, self):
        _slowed(0.35)
        try:
            yield from plain(self)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    patch(speed.SpeedRun, "_steps", stepped)
    _read(gpu_throttle_reasons=64.0, gpu_clock_mhz=900.0)


ROWS = (Entry("as-fast-as-before", "throughput", "", workload="speed", about="Nothing; the machine alone varies."),)
