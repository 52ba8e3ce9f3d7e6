"""Who is ahead, staging or training: what decides whether the next file gets all the connections."""

from __future__ import annotations

__all__ = ["Pace"]


class Pace:
    """How long training has waited for files, and how long it has worked on them.

    Staging hurries from the start, and from each wait, until `enough` files are there before their time. It does not
    while training has waited for longer than it has worked: then the link is the limit, all of the files are waited
    for whichever way they come, and one connection a file moves the most.
    """

    def __init__(self, enough: int) -> None:
        self._enough = enough
        self._hurried = True
        self._worked = 0.0
        self._waited = 0.0
        self._asked: float | None = None
        self._given: float | None = None

    def asked(self, now: float, *, there: bool) -> None:
        """Training asks for its next file, which is there or not."""
        self._hurried = self._hurried or not there
        if self._given is not None:
            self._worked += now - self._given
        self._asked = now

    def given(self, now: float) -> None:
        """Training has it, and goes to work."""
        self._waited += self._waits(now)
        self._asked, self._given = None, now

    def _waits(self, now: float) -> float:
        # The first wait tells nothing of training: there was no work before it.
        return 0.0 if self._asked is None or self._given is None else now - self._asked

    def hurries(self, ahead: int, now: float) -> bool:
        """Whether the next file should come as soon as it can, where so many are there before their time."""
        self._hurried = self._hurried and ahead < self._enough
        return self._hurried and self._waited + self._waits(now) <= self._worked
