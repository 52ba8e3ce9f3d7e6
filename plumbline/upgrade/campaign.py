"""One upgrade being judged: its changes, what is known of them, and the trials that were asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from plumbline.errors import InconclusiveError
from plumbline.upgrade.answer import Culprit
from plumbline.upgrade.bisect import Items
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.progress import Progress
from plumbline.upgrade.sharing import SharedTrials
from plumbline.upgrade.throughput import LOOKS, PairedDrop, paired_drop
from plumbline.upgrade.trials import Package, Trial, TrialResult, Trials

__all__ = ["Budget", "Campaign", "Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """What the workload has to compare."""

    probe: bool = True
    learn: bool = True
    speed: bool = True
    inputs: bool = True


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one gate spends."""

    trials: int = 200
    seconds: float = 24 * 3600.0


@dataclass
class Campaign:
    """What is known while the gate runs, and how it asks for more."""

    trials: Trials
    parts: Parts
    budget: Budget
    say: Callable[[str], None]
    changes: dict[str, PackageChange]
    packages: dict[str, Package] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)
    culprits: list[Culprit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    searches_releases: bool = False
    """Whether the releases of a culprit are searched, too."""
    releases: dict[str, PackageChange] = field(default_factory=dict)
    """By item: a culprit at a release between its two pins."""
    sharing: SharedTrials | None = None
    """The same trials, where other platforms may take some of them."""
    repeats: int = 1
    """How often a set has to pass before it counts as passing."""
    is_flaky: bool = False
    is_complete: bool = True
    """Whether every search ended within the budget."""
    is_unknown: bool = False
    """Whether a part could not be judged."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.say, self.budget.trials, self.budget.seconds)

    @property
    def numerics(self) -> Trial:
        """A trial of the whole probe and learning curve."""
        return Trial(name="x", part="numerics", probe=self.parts.probe, learn=self.parts.learn)

    @property
    def needs(self) -> dict[str, frozenset[str]]:
        """By change: the others that it needs."""
        return {name: frozenset(package.needs) for name, package in self.packages.items()}

    def is_relevant(self, name: str) -> bool:
        """Return whether a change can reach training: its code is loaded, it is new, or Python runs it at start."""
        package = self.packages.get(name)
        is_new = self.changes[name].current is None
        return is_new or name in self.imported or (package is not None and package.has_startup_hook)

    def ask(self, trial: Trial, items: Items | None = None) -> TrialResult:
        """Run one trial: as it is, or under a new name with the changes `items`."""
        named = trial if items is None else self._named(trial, items)
        return self._asked({named.name: named})[0]

    def ask_many(self, trial: Trial, sets: Sequence[Items]) -> dict[Items, TrialResult]:
        """Run a trial with each of several sets of changes, at once where there are workers."""
        trials = {items: self._named(trial, items) for items in sets}
        results = {result.trial: result for result in self._asked({one.name: one for one in trials.values()})}
        return {items: results[one.name] for items, one in trials.items()}

    def paired(
        self, items: Items, *, slower_above: float, fast_below: float, looks: Sequence[int] = LOOKS
    ) -> tuple[PairedDrop | None, TrialResult]:
        """Compare throughput in pairs until the interval decides; the last trial stands beside the answer."""
        ratios: list[float] = []
        found: PairedDrop | None = None
        before = 0
        for count in looks:
            result = self.ask(Trial(name="x", part="speed", pairs=count - before, pairs_before=before), items)
            ratios += result.log_ratios
            before = count
            if result.outcome == "same":
                found = paired_drop(ratios, slower_above=slower_above, fast_below=fast_below, num_looks=len(looks))
            is_decided = found is not None and found.outcome != "undecided"
            if result.outcome != "same" or is_decided:
                break
        return found, result

    def _named(self, trial: Trial, items: Items) -> Trial:
        number = self.progress.next_number()
        changes = tuple(self.releases[name] if name in self.releases else self.changes[name] for name in items)
        return trial.replace(name=f"trial-{number:03d}", changes=[change.model_dump() for change in changes])

    def _asked(self, trials: Mapping[str, Trial]) -> list[TrialResult]:
        """Run trials, each of which has to be answered once."""
        self.progress.check()
        results: list[TrialResult] = []
        for result in self.trials.run(tuple(trials.values())):
            if result.trial not in trials or any(one.trial == result.trial for one in results):
                raise InconclusiveError(f"{result.trial} was answered, and not asked")
            self.progress.add(trials[result.trial], result)
            results.append(result)
        if len(results) != len(trials):
            raise InconclusiveError("a trial was not answered")
        return results
