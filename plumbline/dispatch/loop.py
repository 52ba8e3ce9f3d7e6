"""Drives the lanes of a round over a port, until each is done; leaves no child behind, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from plumbline.dispatch.lane import Lane, advance, begin
from plumbline.dispatch.states import Action, Child, Job, Limits, Phase, Result, View
from plumbline.errors import ConfigurationError

__all__ = ["Port", "run_jobs"]

_POLL_SECONDS = (1.0, 3.0)
_BACKOFF = 1.25

Run = tuple[str, int]
"""A job's key, and the attempt."""


class Port(Protocol):
    """Where trainings are started and seen. A method that cannot reach the other side returns `None` in place."""

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool] | None:
        """Whether a worker of each platform is online."""

    def find(self, runs: Sequence[Run]) -> Collection[Run] | None:
        """Those of the runs that were dispatched already, by a controller before this one."""

    def start(self, job: Job, attempt: int) -> bool:
        """Dispatch this attempt, or find it dispatched already; false if that could not be said.

        `ConfigurationError` where it never can be: nothing is deployed for this platform.
        """

    def observe(self, runs: Sequence[Run]) -> Mapping[Run, Child] | None:
        """What is known of each run."""

    def cancel(self, runs: Sequence[Run], *, force: bool = False) -> None:
        """Have the runs end; returns at once. With `force`, hold them for ended: there is nobody to end them."""

    def recorded(self, job: Job, attempt: int) -> bool | None:
        """Whether the complete record of this attempt lies in the platform's outbox."""


class _Driver:
    """The lanes of one batch, and what has been started for them."""

    def __init__(self, jobs: Sequence[Job], port: Port, limits: Limits, clock: Callable[[], float]) -> None:
        self._port = port
        self._limits = limits
        self._clock = clock
        self._queues: dict[str, list[Job]] = {}
        for job in jobs:
            self._queues.setdefault(job.platform, []).append(job)
        self._lanes = {platform: begin(queue.pop(0), clock()) for platform, queue in self._queues.items()}
        self._pending: set[str] = set()
        self._refused: dict[str, str] = {}
        self._asked: set[str] = set()
        self._left: dict[str, int] = {}
        self.started: set[Run] = set()
        self.results: dict[str, Result] = {}

    @property
    def lanes(self) -> list[Lane]:
        return list(self._lanes.values())

    def round(self) -> bool:
        """Look once at every lane and act; whether any of them moved."""
        before = self.lanes
        seeking = [lane for lane in before if lane.phase is Phase.SEEKING]
        online = self._port.online([lane.job.platform for lane in seeking]) if seeking else {}
        self._find([lane.job for lane in seeking])
        live = [lane for lane in before if lane.phase not in (Phase.SEEKING, Phase.DONE)]
        for lane in live:
            self._retry_start(lane)
        runs = [(lane.job.key, lane.attempt) for lane in live]
        children = self._port.observe(runs) if runs else {}
        for lane in before:
            key = lane.job.key
            view = View(
                # Before it is known what an earlier controller left, nothing is begun.
                online=online.get(lane.job.platform, False) if online is not None and key in self._asked else None,
                left=self._left.get(key),
                child=(children or {}).get((key, lane.attempt)),
                refused=self._refused.get(key, ""),
            )
            self._step(lane, view)
        return [lane.phase for lane in before] != [lane.phase for lane in self.lanes]

    def _find(self, jobs: Sequence[Job]) -> None:
        """What an earlier controller left, asked for once: its last attempt is this one's now, and ends with it."""
        fresh = [job for job in jobs if job.key not in self._asked]
        runs = [(job.key, attempt) for job in fresh for attempt in range(job.retries + 1)]
        found = self._port.find(runs) if runs else ()
        if found is None:
            return
        self._asked.update(job.key for job in fresh)
        for key, attempt in found:
            self._left[key] = max(attempt, self._left.get(key, 0))

    def _step(self, lane: Lane, view: View) -> None:
        lane, action = advance(lane, view, self._clock(), self._limits)
        run = (lane.job.key, lane.attempt)
        if action is Action.LOOK:
            seen = replace(view, recorded=self._port.recorded(lane.job, lane.attempt))
            lane, action = advance(lane, seen, self._clock(), self._limits)
        if action is Action.START:
            self.started.add(run)
            self._pending.add(lane.job.key)
            self._retry_start(lane)
        elif action is Action.CANCEL:
            self._port.cancel([run])
        elif action is Action.FORCE:
            self._port.cancel([run], force=True)
        self._lanes[lane.job.platform] = lane
        if lane.result is not None and lane.job.key not in self.results:
            self.results[lane.job.key] = lane.result
            self._next(lane.job.platform)

    def _retry_start(self, lane: Lane) -> None:
        if lane.job.key not in self._pending:
            return
        try:
            started = self._port.start(lane.job, lane.attempt)
        except ConfigurationError as error:
            self._refused[lane.job.key] = str(error)
            self.started.discard((lane.job.key, lane.attempt))
            started = True
        if started:
            self._pending.discard(lane.job.key)

    def _next(self, platform: str) -> None:
        """One training per platform at a time: the next one begins when the last is done."""
        if self._queues[platform]:
            self._lanes[platform] = begin(self._queues[platform].pop(0), self._clock())

    def close(self) -> None:
        """Cancel whatever was started and is not known to have ended."""
        if not self.started:
            return
        children = self._port.observe(sorted(self.started)) or {}
        left = [run for run in sorted(self.started) if run not in children or not children[run].state.final]
        if left:
            self._port.cancel(left)


def run_jobs(
    jobs: Sequence[Job],
    port: Port,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[Sequence[Lane]], None] = lambda _: None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> dict[str, Result]:
    """Run every job to its result, all platforms at once, the jobs of one platform one after another."""
    driver = _Driver(jobs, port, limits, clock)
    pause = _POLL_SECONDS[0]
    try:
        while len(driver.results) < len(jobs):
            moved = driver.round()
            tell(driver.lanes)
            if len(driver.results) < len(jobs):
                pause = _POLL_SECONDS[0] if moved else min(pause * _BACKOFF, _POLL_SECONDS[1])
                sleep(pause)
    finally:
        driver.close()
    return driver.results
