"""State of one running upgrade judgement.

It has the changes, the facts known about them, and the trials so far.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from plumbline.environments.changes import PackageChange
from plumbline.report.pairs import between, change
from plumbline.report.sentences import counted
from plumbline.schema.base import Model
from plumbline.schema.errors import InconclusiveError
from plumbline.schema.escape import first_of
from plumbline.upgrade.answer import Culprit, Measure, Memory, Package, Trial, TrialLine, TrialResult, Trials
from plumbline.upgrade.comparison import LOOKS, PairedDrop, paired_drop
from plumbline.upgrade.search import Items


class SpentError(InconclusiveError):
    """Error: the budget for trials is used up."""


class TrialProgress:
    """Counter of trials and their duration, within a budget.

    `say` gets one line for each trial that begins, with an estimate, and one for each that ends.
    """

    def __init__(self, say: Callable[[str], None], options: UpgradeOptions) -> None:
        self._say = say
        self._options = options
        self._began = time.monotonic()
        self._number = 0
        self._lines: list[TrialLine] = []
        self._seconds: dict[str, float] = {}
        """By part: how long its last trial took, of `speed` a pair."""

    @property
    def num_trials(self) -> int:
        """Return the number of finished trials."""
        return len(self._lines)

    @property
    def lines(self) -> tuple[TrialLine, ...]:
        """Return the report rows of finished trials, in order."""
        return tuple(self._lines)

    def next_number(self) -> int:
        """Return the number of the next trial."""
        self._number += 1
        return self._number

    def check(self) -> None:
        """Raise `SpentError` once the budget is used up."""
        spent = time.monotonic() - self._began
        if self.num_trials >= self._options.trials or spent >= self._options.seconds:
            hint = "allow more with --max-trials or --max-seconds"
            what = f"the budget is spent: {self.num_trials} trials in {spent:.0f} s"
            raise SpentError(what, where="upgrade", hint=hint)

    def begin(self, trial: Trial) -> None:
        """Print that a trial begins, and its estimated duration."""
        seconds = self._expected(trial)
        about = f", about {duration(seconds)}" if seconds else ""
        self._say(f"{trial.part}{_with(trial)}: begins{about}")

    def _expected(self, trial: Trial) -> float:
        """Estimate a trial's duration in seconds; 0 before any measurement.

        A part that was not trained yet takes as long as the reference.
        """
        known = self._seconds.get(trial.part)
        if trial.part == "speed":
            return trial.pairs * (2 * self._seconds.get("reference", 0.0) if known is None else known)
        return self._seconds.get("reference", 0.0) if known is None and trial.part != "releases" else known or 0.0

    def estimate(self, num_parts: int, num_loaded: int) -> None:
        """Print the estimated duration of the comparison and a culprit search."""
        seconds = self._seconds.get("reference", 0.0)
        searched = (math.ceil(math.log2(max(1, num_loaded))) + 1) * seconds
        search = f", a search for one culprit among {num_loaded} changes about {duration(searched)} more"
        self._say(
            f"estimate: {duration(seconds)} a training; the comparison takes about {duration(num_parts * seconds)}"
            f"{search if num_loaded > 1 else ''}"
        )

    def add(self, trial: Trial, result: TrialResult) -> None:
        """Record a finished trial, and print its row."""
        if result.outcome != "lost":
            self._seconds[trial.part] = result.seconds / (trial.pairs if trial.part == "speed" else 1)
        names = tuple(str(change) for change in trial.changes)
        self._lines.append(
            TrialLine(
                name=trial.name, part=trial.part, changes=names, outcome=result.outcome, measured=_measured(result),
                seconds=result.seconds, worker=result.worker,
            )
        )  # fmt: skip
        left, measured = self._options.trials - self.num_trials, _measured(result)
        outcome = f"{measured}," if measured else result.outcome
        self._say(
            f"trial {self.num_trials}: {trial.part}: {outcome} in {result.seconds:.0f} s"
            f"{_with(trial)}; at most {left} more"
        )


def duration(seconds: float) -> str:
    """Format a rounded duration, such as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def _with(trial: Trial) -> str:
    return f" with {first_of(trial.changes, 3)}" if trial.changes else " of the current environment"


def _measured(result: TrialResult) -> str:
    """Describe the range of throughput ratios in a trial.

    "" for other trials. Pairs decide only together with those of other trials, so there is no mean.
    """
    ratios = result.log_ratios
    if result.outcome != "same" or not ratios:
        return ""
    losses = sorted(-math.expm1(ratio) for ratio in ratios)
    text = change(losses[0]) if len(losses) == 1 else between(losses[0], losses[-1])
    return f"{counted(len(losses), 'pairs')}, {text}"


@dataclass(frozen=True, slots=True)
class Parts:
    """Workload parts to compare."""

    probe: bool = True
    learn: bool = True
    speed: bool = True
    inputs: bool = True


class UpgradeOptions(Model):
    """User's options for one upgrade: budgets and limits."""

    trials: int = 200
    """Maximum number of trials."""
    seconds: float = 24 * 3600.0
    """Time after which no trial begins."""
    releases: bool = False
    """Whether the releases of a culprit are searched, too."""
    allow_unhashed: bool = False
    """Whether packages without a hash are installed, as a person allowed for this upgrade."""


@dataclass
class Campaign:
    """Running upgrade judgement, which also runs its trials."""

    trials: Trials
    parts: Parts
    options: UpgradeOptions
    say: Callable[[str], None]
    changes: dict[str, PackageChange]
    packages: dict[str, Package] = field(default_factory=dict)
    opened: set[str] = field(default_factory=set)
    """Packages of which a training opened a file."""
    culprits: list[Culprit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    releases: dict[str, PackageChange] = field(default_factory=dict)
    """By item: a culprit at a release between its two pins."""
    pairs: dict[frozenset[str], list[TrialResult]] = field(default_factory=dict)
    """By set of changes: its trials of speed, of which throughput and memory are read."""
    same: TrialResult | None = None
    """The trial of numerics that agrees, with all changes but the culprits."""
    repeats: int = 1
    """How often a set has to pass before it counts as passing."""
    is_flaky: bool = False
    is_complete: bool = True
    """Whether every search ended within the budget."""
    is_unknown: bool = False
    """Whether a part could not be judged."""

    def __post_init__(self) -> None:
        self.progress = TrialProgress(self.say, self.options)

    @property
    def numerics(self) -> Trial:
        """Return the trial that compares the whole probe and learning curve."""
        return Trial(name="x", part="numerics", probe=self.parts.probe, learn=self.parts.learn)

    @property
    def needs(self) -> dict[str, frozenset[str]]:
        """Map each package change to the other changes that it needs."""
        return {name: frozenset(package.needs) for name, package in self.packages.items()}

    def ask(self, trial: Trial, items: Items | None = None) -> TrialResult:
        """Run one trial.

        `items` gives the trial these changes and a new name.
        """
        if items is not None:
            changes = (self.releases.get(name) or self.changes[name] for name in items)
            number = self.progress.next_number()
            trial = trial.replace(name=f"trial-{number:03d}", changes=[change.model_dump() for change in changes])
        self.progress.check()
        self.progress.begin(trial)
        result = self.trials.run(trial)
        self.progress.add(trial, result)
        self.opened |= set(result.opened or ())
        if trial.part == "speed" and result.outcome == "same":
            self.pairs.setdefault(frozenset(items or ()), []).append(result)
        return result

    def paired(
        self, items: Items, *, slower_above: float, fast_below: float, looks: Sequence[int] = LOOKS,
        measure: Measure = "throughput",
    ) -> tuple[PairedDrop | None, TrialResult]:  # fmt: skip
        """Compare a measure in repeated pairs until its confidence interval is decisive.

        Also return the last trial's result. The comparison is `None` below three finite pairs. Pairs that were trained
        for a different measure count.
        """
        results = self.pairs.setdefault(frozenset(items), [])
        drop: PairedDrop | None = None
        for count in looks:
            before = sum(len(result.log_ratios) for result in results)
            if count < before:
                continue
            if count > before:
                result = self.ask(Trial(name="x", part="speed", pairs=count - before, pairs_before=before), items)
                if result.outcome != "same":
                    return drop, result
            drop = paired_drop(
                [ratio for result in results for ratio in result.ratios(measure)],
                slower_above=slower_above, fast_below=fast_below, num_looks=len(looks), measure=measure,
            )  # fmt: skip
            if drop is not None and drop.outcome != "undecided":
                break
        return drop, results[-1]

    def memories(self, items: Items) -> tuple[Memory, ...]:
        """Return the memory kinds with a measured peak in every pair."""
        results = self.pairs.get(frozenset(items), [])
        names = {name for result in results for name in result.memory_ratios}
        return tuple(
            sorted(
                name
                for name in names
                if all(len(result.memory_ratios.get(name, ())) == len(result.log_ratios) for result in results)
            )
        )
