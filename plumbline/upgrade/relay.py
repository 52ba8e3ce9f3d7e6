"""Controller's part of a shared search.

It decides which platform leads, which help, and which runs which trial. A worker reaches only the outbox of its
platform, so that every message between two platforms passes here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from plumbline.central.outbox import record_key
from plumbline.errors import PlumblineError
from plumbline.stores import Store
from plumbline.upgrade.orders import REPORT_NAME
from plumbline.upgrade.search_messages import Helper, Mailbox, Notice, Question, Reply, Role, SharedResult

__all__ = ["Relay"]

_STEP_SECONDS = 1.0
_END_SECONDS = 60.0


@dataclass
class _Member:
    platform: str
    mailbox: Mailbox
    num_questions: int = 0
    """Of a helper: the questions that it was given."""
    asked: int | None = None
    """Of a helper: the leader's number of the question that it answers now."""


@dataclass
class _Group:
    """Platforms that search for the same culprits."""

    leader: _Member
    helpers: list[_Member] = field(default_factory=list)
    num_helpers: int = 0
    num_questions: int = 0
    waiting: deque[tuple[int, Question]] = field(default_factory=deque)


class Relay:
    """Exchange of messages between the platforms of one upgrade.

    Each `step` passes on the messages that arrived since the last one.
    """

    def __init__(self, outboxes: Mapping[str, Store]) -> None:
        self._outboxes = outboxes
        self._attempts: dict[str, str] = {}
        self._num_searches: dict[str, int] = {}
        self._groups: dict[str, _Group] = {}

    def start(self, platform: str, record_id: str) -> None:
        """Register the attempt that now runs on a platform."""
        self._attempts[platform] = record_id

    def end(self, platform: str) -> None:
        """Register that no attempt runs on a platform any more."""
        self._attempts.pop(platform, None)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Pass messages on in a thread until the block ends."""
        stop = threading.Event()

        def pass_on() -> None:
            while not stop.wait(_STEP_SECONDS):
                self.step()

        thread = threading.Thread(target=pass_on, name="relay", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(_END_SECONDS)

    def step(self) -> None:
        """Read new messages, and pass them on."""
        for platform, record_id in list(self._attempts.items()):
            mailbox = Mailbox(self._outboxes[platform], record_id, self._num_searches.get(record_id, 0))
            if notice := mailbox.get(Notice, "open"):
                self._num_searches[record_id] = mailbox.number + 1
                self._admit(_Member(platform, mailbox), notice.baseline)
        for baseline, group in list(self._groups.items()):
            if self._pass_on(group):
                del self._groups[baseline]

    def _admit(self, member: _Member, baseline: str) -> None:
        if member.mailbox.get(Role, "role") is not None:
            # Of an earlier controller, whose groups are lost.
            member.mailbox.put("found", SharedResult())
            return
        if self._is_gone(member):
            return  # it waited too long for this controller or the one before
        group = self._groups.get(baseline)
        if group is None or group.leader.platform == member.platform:
            if member.mailbox.put("role", Role()):
                self._groups[baseline] = _Group(member)
        elif member.mailbox.put("role", Role(leader=group.leader.platform)):
            group.leader.mailbox.put(f"helper-{group.num_helpers}", Helper(platform=member.platform))
            group.num_helpers += 1
            group.helpers.append(member)

    def _pass_on(self, group: _Group) -> bool:
        """Pass a group's messages on; return whether its search ended."""
        result = group.leader.mailbox.get(SharedResult, "found")
        if result is None and self._is_gone(group.leader):
            result = SharedResult()
        if result is not None:
            for helper in group.helpers:
                helper.mailbox.put("found", result)
            return True
        while question := group.leader.mailbox.get(Question, f"ask-{group.num_questions}"):
            group.waiting.append((group.num_questions, question))
            group.num_questions += 1
        for helper in list(group.helpers):
            self._serve(group, helper)
        return False

    def _serve(self, group: _Group, helper: _Member) -> None:
        """Fetch a helper's answer, and send the next question."""
        if helper.asked is not None:
            reply = helper.mailbox.get(Reply, f"answer-{helper.num_questions - 1}")
            if reply is None and self._is_gone(helper):
                reply = Reply(outcome="lost")
            if reply is None:
                return
            group.leader.mailbox.put(f"answer-{helper.asked}", reply.replace(platform=helper.platform))
            helper.asked = None
        if self._is_gone(helper):
            group.helpers.remove(helper)
        elif group.waiting:
            number, question = group.waiting.popleft()
            helper.asked = number
            helper.mailbox.put(f"ask-{helper.num_questions}", question)
            helper.num_questions += 1

    def _is_gone(self, member: _Member) -> bool:
        """Return whether a member takes no part any more.

        Its attempt has ended, a later attempt has begun, or it searches alone.
        """
        if self._attempts.get(member.platform) != member.mailbox.record_id:
            return True
        if member.mailbox.get(Role, "left") is not None:
            return True
        with suppress(PlumblineError):
            self._outboxes[member.platform].stat(record_key(member.mailbox.record_id, REPORT_NAME))
            return True
        return False
