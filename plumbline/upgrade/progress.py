"""Budget of a gate: spent trials and seconds, and limits."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from plumbline.errors import InconclusiveError
from plumbline.upgrade.answer import TrialLine
from plumbline.upgrade.trials import Trial, TrialResult

__all__ = ["Progress", "SpentError"]

_SHOWN = 3


class SpentError(InconclusiveError):
    """Error: the budget allows no more trials."""


class Progress:
    """Counter of trials and seconds.

    `say` gets one line for each trial that ends.
    """

    def __init__(self, say: Callable[[str], None], most_trials: int, most_seconds: float) -> None:
        self._say = say
        self._most_trials = most_trials
        self._most_seconds = most_seconds
        self._began = time.monotonic()
        self._number = 0
        self._lines: list[TrialLine] = []

    @property
    def num_trials(self) -> int:
        """Return the number of ended trials."""
        return len(self._lines)

    @property
    def lines(self) -> tuple[TrialLine, ...]:
        """Return the ended trials, in order."""
        return tuple(self._lines)

    def next_number(self) -> int:
        """Return the number of the next trial."""
        self._number += 1
        return self._number

    def check(self) -> None:
        """Raise `SpentError` once the budget is spent."""
        spent = time.monotonic() - self._began
        if self.num_trials >= self._most_trials or spent >= self._most_seconds:
            hint = "allow more with --max-trials or --max-seconds"
            what = f"the budget is spent: {self.num_trials} trials in {spent:.0f} s"
            raise SpentError(what, where="upgrade", hint=hint)

    def add(self, trial: Trial, result: TrialResult) -> None:
        """Record a trial that ended, and print its line."""
        names = tuple(str(change) for change in trial.changes)
        self._lines.append(
            TrialLine(
                name=trial.name, part=trial.part, changes=names, outcome=result.outcome, measured=_measured(result),
                seconds=result.seconds, worker=result.worker,
            )
        )  # fmt: skip
        shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        left, measured = self._most_trials - self.num_trials, _measured(result)
        outcome = f"{measured}," if measured else result.outcome
        self._say(
            f"trial {self.num_trials}: {trial.part}: {outcome} in {result.seconds:.0f} s"
            f"{f' on {result.worker}' if result.is_elsewhere else ''}"
            f"{f' with {shown}' if names else ' of the current environment'}; at most {left} more"
        )


def _measured(result: TrialResult) -> str:
    """Return the mean result of a trial's throughput pairs.

    "" for other trials. Pairs decide only together with those of other trials.
    """
    ratios = result.log_ratios
    if result.outcome != "same" or not ratios:
        return ""
    gain = math.expm1(statistics.fmean(ratios))
    pairs = "1 pair" if len(ratios) == 1 else f"{len(ratios)} pairs"
    return f"{pairs}, {100 * abs(gain):.1f} % {'slower' if gain < 0 else 'faster'}"
