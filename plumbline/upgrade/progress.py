"""Progress of a gate: trials that began and ended, estimates, and the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from plumbline.errors import InconclusiveError
from plumbline.upgrade.answer import TrialLine
from plumbline.upgrade.trials import Trial, TrialResult

_SHOWN = 3


class SpentError(InconclusiveError):
    """Error: the budget allows no more trials."""


class TrialProgress:
    """Counter of trials and seconds.

    `say` gets one line for each trial that begins, with an estimate, and one for each that ends.
    """

    def __init__(self, say: Callable[[str], None], most_trials: int, most_seconds: float) -> None:
        self._say = say
        self._most_trials = most_trials
        self._most_seconds = most_seconds
        self._began = time.monotonic()
        self._number = 0
        self._lines: list[TrialLine] = []
        self._seconds: dict[str, float] = {}
        """By part: how long its last trial took, of `speed` a pair."""

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

    def begin(self, trial: Trial) -> None:
        """Print that a trial begins, and about how long it takes."""
        seconds = self._expected(trial)
        about = f", about {duration(seconds)}" if seconds else ""
        self._say(f"{trial.part}{_with(trial)}: begins{about}")

    def _expected(self, trial: Trial) -> float:
        """Return about how many seconds a trial takes; 0 before anything was measured.

        A part that was not trained yet takes as long as the reference.
        """
        known = self._seconds.get(trial.part)
        if trial.part == "speed":
            return trial.pairs * (2 * self._seconds.get("reference", 0.0) if known is None else known)
        return self._seconds.get("reference", 0.0) if known is None and trial.part != "releases" else known or 0.0

    def estimate(self, num_parts: int, num_loaded: int) -> None:
        """Print about how long the comparison takes, and a search for one culprit; the reference was just trained."""
        seconds = self._seconds.get("reference", 0.0)
        searched = (math.ceil(math.log2(max(1, num_loaded))) + 1) * seconds
        search = f", a search for one culprit among {num_loaded} changes about {duration(searched)} more"
        self._say(
            f"estimate: {duration(seconds)} a training; the comparison takes about {duration(num_parts * seconds)}"
            f"{search if num_loaded > 1 else ''}"
        )

    def add(self, trial: Trial, result: TrialResult) -> None:
        """Record a trial that ended, and print its line."""
        if result.outcome != "lost":
            self._seconds[trial.part] = result.seconds / (trial.pairs if trial.part == "speed" else 1)
        names = tuple(str(change) for change in trial.changes)
        self._lines.append(
            TrialLine(
                name=trial.name, part=trial.part, changes=names, outcome=result.outcome, measured=_measured(result),
                seconds=result.seconds, worker=result.worker,
            )
        )  # fmt: skip
        left, measured = self._most_trials - self.num_trials, _measured(result)
        outcome = f"{measured}," if measured else result.outcome
        self._say(
            f"trial {self.num_trials}: {trial.part}: {outcome} in {result.seconds:.0f} s"
            f"{_with(trial)}; at most {left} more"
        )


def duration(seconds: float) -> str:
    """Return a rounded duration, such as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def _with(trial: Trial) -> str:
    names = [str(change) for change in trial.changes]
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f" with {shown}" if names else " of the current environment"


def _measured(result: TrialResult) -> str:
    """Return the least and the greatest result of a trial's throughput pairs.

    "" for other trials. Pairs decide only together with those of other trials, so there is no mean.
    """
    ratios = result.log_ratios
    if result.outcome != "same" or not ratios:
        return ""
    losses = sorted(-100 * math.expm1(ratio) for ratio in ratios)
    if len(losses) == 1:
        return f"1 pair, {abs(losses[0]):.1f} % {'slower' if losses[0] > 0 else 'faster'}"
    return f"{len(losses)} pairs, {losses[0]:.1f} % to {losses[-1]:.1f} % slower"
