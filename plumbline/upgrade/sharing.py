"""Trials that several platforms share.

Platforms that search for the same culprit train different sets of changes in parallel. The first platform leads its
search, later ones help. A helper's answers only choose what the leader tries next: each platform confirms the result by
its own trials.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from plumbline.stores import Store
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.search_messages import Helper, Mailbox, Notice, Question, Reply, Role, SharedResult
from plumbline.upgrade.trials import Trial, TrialPart, TrialResult, Trials

__all__ = ["SharedTrials", "Waits"]

_SHARED: frozenset[TrialPart] = frozenset({"inputs", "numerics"})
"""Not `speed`: a throughput is that of one machine."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Timeouts in seconds, after which a platform continues alone."""

    poll: float = 1.0
    role: float = 30.0
    """For the controller."""
    reply: float = 60.0
    """For a helper, beyond twice the time of the leader's trial."""
    question: float = 1800.0
    """For the leader: a part of its search has no trials to share."""


class SharedTrials:
    """Trials of this platform and of its helpers."""

    def __init__(
        self, own: Trials, outbox: Store, record_id: str, *, say: Callable[[str], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False, waits: Waits = Waits(),
    ) -> None:  # fmt: skip
        self._own = own
        self._outbox, self._record_id = outbox, record_id
        self._say = say
        self._should_stop = should_stop
        self._waits = waits
        self._num_searches = 0
        self._led: Mailbox | None = None
        self._helpers: list[str] = []
        self._num_silent = 0
        self._num_questions = 0

    @property
    def num_parallel(self) -> int:
        """Return the number of platforms that search, including this one."""
        if self._led is None:
            return self._own.num_parallel
        while helper := self._led.get(Helper, f"helper-{len(self._helpers)}"):
            self._helpers.append(helper.platform)
            self._say(f"{helper.platform} helps to search")
        return max(1, 1 + len(self._helpers) - self._num_silent)

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Run the trials, in parallel on the platforms that search."""
        if self._led is None or len(trials) < 2 or not all(trial.part in _SHARED for trial in trials):
            yield from self._own.run(trials)
        else:
            yield from self._spread(self._led, trials)

    def join(
        self, baseline: str, changes: Mapping[str, PackageChange], check: Callable[[], None] = lambda: None
    ) -> SharedResult | None:
        """Help the platform that leads this search; return its result.

        `None` if this platform has to search. `check` raises once the budget is spent.
        """
        self.leave()
        mailbox = Mailbox(self._outbox, self._record_id, self._num_searches)
        self._num_searches += 1
        if not mailbox.put("open", Notice(baseline=baseline)):
            return None
        deadline = time.monotonic() + self._waits.role
        while (role := mailbox.get(Role, "role")) is None and time.monotonic() < deadline and not self._should_stop():
            check()
            time.sleep(self._waits.poll)
        if role is None:
            mailbox.put("left", Role())  # a role that comes later would make others wait for this platform
            return None
        if not role.leader:
            self._led = mailbox
            return None
        self._say(f"helps {role.leader} to search for the culprit")
        result = self._help(mailbox, role.leader, changes, check)
        return result if result is not None and result.culprits else None

    def publish(self, result: SharedResult) -> None:
        """Publish the search's result, and run later trials here."""
        if self._led is not None:
            self._led.put("found", result)
        self.leave()

    def leave(self) -> None:
        """Run all later trials here."""
        self._led, self._helpers, self._num_silent, self._num_questions = None, [], 0, 0

    def _help(
        self, mailbox: Mailbox, leader: str, changes: Mapping[str, PackageChange], check: Callable[[], None]
    ) -> SharedResult | None:
        """Answer the leader's questions until it has the result.

        Also end if it asks nothing for too long.
        """
        number, heard = 0, time.monotonic()
        while time.monotonic() - heard < self._waits.question and not self._should_stop():
            check()
            if result := mailbox.get(SharedResult, "found"):
                return result
            question = mailbox.get(Question, f"ask-{number}")
            if question is None:
                time.sleep(self._waits.poll)
                continue
            self._say(f"trial for {leader}: {question.trial.part} with {len(question.items)} changes")
            mailbox.put(f"answer-{number}", self._answer(question, changes, number))
            number, heard = number + 1, time.monotonic()
        mailbox.put("left", Role())
        return None

    def _answer(self, question: Question, changes: Mapping[str, PackageChange], number: int) -> Reply:
        if question.trial.part not in _SHARED or not set(question.items) <= changes.keys():
            return Reply(outcome="lost")
        own_changes = [changes[name].model_dump() for name in question.items]
        trial = question.trial.replace(name=f"help-{number:03d}", changes=own_changes)
        (result,) = self._own.run([trial])
        return Reply(outcome=result.outcome, seconds=result.seconds)

    def _spread(self, mailbox: Mailbox, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Run the first trial here; offer the others to helpers.

        A trial without an answer in time runs here, too.
        """
        first, *others = trials
        waiting: dict[int, Trial] = {}
        refused: list[Trial] = []
        for trial in others:
            items = tuple(change.package for change in trial.changes)
            if mailbox.put(f"ask-{self._num_questions}", Question(items=items, trial=trial.replace(changes=()))):
                waiting[self._num_questions] = trial
                self._num_questions += 1
            else:
                refused.append(trial)
        began = time.monotonic()
        yield from self._own.run([first, *refused])
        deadline = time.monotonic() + (time.monotonic() - began) + self._waits.reply
        while waiting and time.monotonic() < deadline and not self._should_stop():
            for number in list(waiting):
                if reply := mailbox.get(Reply, f"answer-{number}"):
                    yield from self._taken(waiting.pop(number), reply)
            time.sleep(self._waits.poll if waiting else 0.0)
        self._num_silent += len(waiting)
        yield from self._own.run(list(waiting.values()))

    def _taken(self, trial: Trial, reply: Reply) -> Iterator[TrialResult]:
        if reply.outcome not in ("same", "drift", "cannot-train"):
            yield from self._own.run([trial])
            return
        yield TrialResult(
            trial=trial.name, outcome=reply.outcome, worker=reply.platform, seconds=reply.seconds, is_elsewhere=True
        )
