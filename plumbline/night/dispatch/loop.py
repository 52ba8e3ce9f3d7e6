"""Loop over a round's trainings until all are done or cancelled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from plumbline.night.dispatch.states import Action, ChildRun, Job, Limits, Phase, Recorded, Result, View
from plumbline.night.dispatch.training_run import TrainingRun, advance, begin

_POLL_SECONDS = (1.0, 3.0)
_BACKOFF = 1.25

DispatchedRun = tuple[str, int]
"""Job key and attempt."""


class Orchestrator(Protocol):
    """Interface to start and observe trainings; methods return `None` if unreachable."""

    def online(self, platforms: Sequence[str]) -> Mapping[str, bool | None] | None:
        """Return whether each platform has a worker online; `None` if unknown."""

    def find(self, runs: Sequence[DispatchedRun]) -> Collection[DispatchedRun] | None:
        """Return the runs that an earlier controller process already dispatched."""

    def start(self, attempts: Sequence[tuple[Job, int]]) -> Mapping[DispatchedRun, str]:
        """Start each attempt, unless already started; omit attempts with unknown status.

        The text is empty, or says why the attempt can never be dispatched.
        """

    def observe(self, runs: Sequence[DispatchedRun]) -> Mapping[DispatchedRun, ChildRun] | None:
        """Return the state of each run."""

    def cancel(self, runs: Sequence[DispatchedRun], *, force: bool = False) -> None:
        """Request the runs' cancellation, without waiting. `force` marks them as ended."""

    def recorded(self, job: Job, attempt: int, *, has_ended: bool) -> Recorded | None:
        """Return the kind of record in the outbox for this attempt, as of its run or, with `has_ended`, of its end.

        Returns at once: `None` while the outbox does not answer.
        """


class _Driver:
    """Driver of one batch of trainings and the runs started for these."""

    def __init__(
        self, jobs: Sequence[Job], orchestrator: Orchestrator, limits: Limits, clock: Callable[[], float]
    ) -> None:
        self._orchestrator = orchestrator
        self._limits = limits
        self._clock = clock
        self._waiting = list(jobs)
        self._active: dict[str, TrainingRun] = {}
        self._pending: dict[str, tuple[Job, int]] = {}
        self._refused: dict[str, str] = {}
        self._asked: set[str] = set()
        self._left: dict[str, int] = {}
        self.started: set[DispatchedRun] = set()
        self.results: dict[str, Result] = {}
        self._begin()

    def _begin(self) -> None:
        """Start each platform's next jobs, up to its concurrency limit."""
        busy = Counter(training.job.platform for training in self._active.values())
        for job in list(self._waiting):
            if busy[job.platform] < job.at_once:
                busy[job.platform] += 1
                self._waiting.remove(job)
                self._active[job.key] = begin(job, self._clock())

    @property
    def busy(self) -> frozenset[str]:
        """Return the platforms with unfinished jobs."""
        return frozenset(job.platform for job in (*self._waiting, *(each.job for each in self._active.values())))

    def round(self) -> bool:
        """Observe every training and act once; return whether any phase changed."""
        before = list(self._active.values())
        seeking = [training for training in before if training.phase is Phase.SEEKING]
        platforms = list(dict.fromkeys(training.job.platform for training in seeking))
        online = self._orchestrator.online(platforms) if seeking else {}
        self._find([training.job for training in seeking])
        live = [training for training in before if training.phase not in (Phase.SEEKING, Phase.DONE)]
        runs = [(training.job.key, training.attempt) for training in live]
        children = self._orchestrator.observe(runs) if runs else {}
        seen_at = self._clock()  # of the observation, whatever the checks of the outboxes take
        for training in before:
            key = training.job.key
            view = View(
                # Start no run before an earlier controller's attempts are known.
                online=online.get(training.job.platform, False) if online is not None and key in self._asked else None,
                left=self._left.get(key),
                child=(children or {}).get((key, training.attempt)),
                refused=self._refused.get(key, ""),
            )
            self._step(training, view, seen_at)
        self._start()
        self._begin()
        return {training.job.key: training.phase for training in before} != {
            key: training.phase for key, training in self._active.items()
        }

    def _find(self, jobs: Sequence[Job]) -> None:
        """Find an earlier controller's attempts once, and adopt the last."""
        fresh = [job for job in jobs if job.key not in self._asked]
        # By platform: the server of one may be away.
        for platform in dict.fromkeys(job.platform for job in fresh):
            own = [job for job in fresh if job.platform == platform]
            found = self._orchestrator.find([(job.key, attempt) for job in own for attempt in range(job.retries + 1)])
            if found is None:
                continue
            self._asked.update(job.key for job in own)
            for key, attempt in found:
                self._left[key] = max(attempt, self._left.get(key, 0))

    def _step(self, training: TrainingRun, view: View, seen_at: float) -> None:
        training, action = advance(training, view, seen_at, self._limits)
        run = (training.job.key, training.attempt)
        if action is Action.LOOK:
            has_ended = training.phase is Phase.SETTLING
            found = self._orchestrator.recorded(training.job, training.attempt, has_ended=has_ended)
            seen = replace(view, recorded=found)
            training, action = advance(training, seen, seen_at, self._limits)
        if action is Action.START:
            self.started.add(run)
            self._pending[training.job.key] = (training.job, training.attempt)
        elif action is Action.CANCEL:
            self._orchestrator.cancel([run])
        elif action is Action.FORCE:
            self._orchestrator.cancel([run], force=True)
        self._active[training.job.key] = training
        if training.result is not None:
            self.results[training.job.key] = training.result
            self._pending.pop(training.job.key, None)
            del self._active[training.job.key]

    def _start(self) -> None:
        """Dispatch all attempts that are due or of unknown status."""
        answers = self._orchestrator.start(list(self._pending.values())) if self._pending else {}
        for (key, attempt), refusal in answers.items():
            del self._pending[key]
            if refusal:
                self._refused[key] = refusal
                self.started.discard((key, attempt))

    def close(self) -> None:
        """Cancel all started runs that have not ended."""
        if not self.started:
            return
        children = self._orchestrator.observe(sorted(self.started)) or {}
        left = [run for run in sorted(self.started) if run not in children or not children[run].state.final]
        if left:
            self._orchestrator.cancel(left)


def run_jobs(
    jobs: Sequence[Job],
    orchestrator: Orchestrator,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    limits: Limits = Limits(),  # noqa: B008 - frozen
    keep_up: Callable[[frozenset[str]], None] = lambda _: None,
) -> dict[str, Result]:
    """Run all jobs: platforms in parallel, each platform's jobs in order.

    `keep_up` receives the platforms with jobs left: before the first job, and each time that a platform's last ended.
    """
    driver = _Driver(jobs, orchestrator, limits, clock)
    pause, busy = _POLL_SECONDS[0], driver.busy
    try:
        keep_up(busy)
        while busy:
            moved = driver.round()
            before, busy = busy, driver.busy
            if busy and busy != before:
                keep_up(busy)
            if busy:
                pause = _POLL_SECONDS[0] if moved else min(pause * _BACKOFF, _POLL_SECONDS[1])
                sleep(pause)
    finally:
        driver.close()
    return driver.results
