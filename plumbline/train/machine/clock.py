"""Step timer: CUDA events on a GPU, a monotonic clock elsewhere."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import torch

from plumbline.train.engine import Clock

PHASES = ("data_wait", "host_to_device", "forward", "backward", "optimizer")
_KEPT_UNREAD = 64


class StepClock(Clock):
    """Duration of each phase of each step, in seconds.

    A step lasts from the request of its batch to the request of the next batch. On a GPU the events of a step are read
    `_KEPT_UNREAD` steps later or at the end, so that reading never makes the host wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._steps: list[dict[str, float]] = []
        self._totals: list[float] = []
        self._unread: list[list[tuple[str, Any]]] = []
        self._marks: list[tuple[str, Any]] = []
        self._host: dict[str, float] = {}
        self._last = self._started = 0.0
        self._communication, self._is_watched = 0.0, True

    def __len__(self) -> int:
        return len(self._totals) + len(self._unread)

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self) -> None:
        """Start timing a step, before its batch is requested."""
        self._started = self._last = time.perf_counter()
        self._host = {}
        self._communication = 0.0
        self._marks = [("", self._event())] if self._cuda else []

    def mark(self, name: str) -> None:
        """Add the time since the last mark to phase `name`."""
        now = time.perf_counter()
        self._host[name] = self._host.get(name, 0.0) + now - self._last
        self._last = now
        if self._cuda:
            self._marks.append((name, self._event()))

    def stop(self) -> None:
        """Stop timing the step."""
        if self._cuda:
            self._unread.append([*self._marks, ("host_data_wait", self._host.get("data_wait", 0.0))])
            while len(self._unread) > _KEPT_UNREAD:
                self._read(self._unread.pop(0))
            return
        if self._is_watched:
            self._host["communication"] = self._communication
        self._steps.append(self._host)
        self._totals.append(time.perf_counter() - self._started)

    def _read(self, marks: list[tuple[str, Any]]) -> None:
        *events, (_, host_wait) = marks
        events[-1][1].synchronize()
        step: dict[str, float] = {}
        for (_, before), (name, after) in pairwise(events):
            step[name] = step.get(name, 0.0) + before.elapsed_time(after) / 1000
        step["host_data_wait"] = host_wait
        self._steps.append(step)
        self._totals.append(events[0][1].elapsed_time(events[-1][1]) / 1000)

    def resolve(self) -> None:
        """Read all pending CUDA events, after waiting for the device."""
        for marks in self._unread:
            self._read(marks)
        self._unread = []

    def totals(self) -> list[float]:
        """Return the duration of each step in seconds."""
        if self._cuda:
            self.resolve()
        return list(self._totals)

    def breakdown(self, first: int) -> dict[str, float]:
        """Return the mean seconds of each phase, over the steps since `first`."""
        steps = self._steps[first:]
        names = sorted({name for step in steps for name in step})
        return {name: statistics.fmean(step.get(name, 0.0) for step in steps) for name in names}

    def watch(self, model: Any) -> None:
        """Time the gradient all-reduce between several processes.

        A GPU is not timed: the host's clock would show when a bucket was queued, not when it was reduced, and a Python
        hook would slow down the measured training. Nor is FSDP2, which has no hook.
        """
        self._is_watched = not hasattr(model, "set_requires_gradient_sync")
        if self._cuda or not hasattr(model, "register_comm_hook"):
            return
        import torch.distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        def hook(state: Any, bucket: Any) -> Any:
            began = time.perf_counter()

            def ended(future: Any) -> Any:
                self._communication += time.perf_counter() - began
                return future.value()[0] if isinstance(future.value(), (list, tuple)) else future.value()

            return allreduce_hook(state, bucket).then(ended)

        # DistributedDataParallel requires these annotations as objects, not as strings.
        bucket_type = vars(dist)["GradBucket"]
        hook.__annotations__ = {"bucket": bucket_type, "return": torch.futures.Future[torch.Tensor]}
        model.register_comm_hook(None, hook)
