"""Search for the package changes that cause one effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from plumbline.environments.changes import PackageChange, has_releases
from plumbline.environments.locks.model import Pin
from plumbline.schema.verdict import Judgement
from plumbline.upgrade.answer import Others, ReleaseRange, Trial, TrialOutcome, TrialResult
from plumbline.upgrade.campaign import Campaign, SpentError
from plumbline.upgrade.comparison import SEARCH_LOOKS, PairedDrop
from plumbline.upgrade.report import culprit_of
from plumbline.upgrade.search import (
    CulpritSet,
    Items,
    SearchEndedError,
    SearchResult,
    TrialAnswer,
    closure,
    find_culprits,
    range_sentence,
    search_releases,
)

Effect = Literal["cannot-train", "inputs", "numerics", "speed", "memory"]
_PAIRED: tuple[Effect, ...] = ("speed", "memory")
_MAKERS = {"tokenization": "tokenizers", "model.architecture": "transformers"}
"""The one package that makes what a cause names."""
_FLAKY_LOOKS = 3
_FLAKY_REPEATS = 6
"""A pass of a flaky candidate counts after this many in a row: one that fails in half of its runs slips by in 1.6%."""
_DRIFTS: dict[TrialOutcome, TrialAnswer] = {"drift": "fails", "same": "passes"}
_CANNOT_TRAIN: dict[TrialOutcome, TrialAnswer] = {"cannot-train": "fails", "same": "passes", "drift": "passes"}


class UnsteadyError(Exception):
    """Error: two trainings in the current environment differ."""

    def __init__(self, judgement: Judgement | None) -> None:
        super().__init__("the current environment does not agree with itself")
        self.judgement = judgement


class CulpritSearch:
    """Search for the package changes that cause one effect.

    `trial` shows the effect; `whole` and `drop` are the results with all changes.
    """

    def __init__(
        self, campaign: Campaign, effect: Effect, trial: Trial, *, whole: TrialResult | None = None,
        drop: PairedDrop | None = None,
    ) -> None:  # fmt: skip
        self._campaign = campaign
        self._effect = effect
        self._trial = trial
        self._whole = whole
        self._drop = drop
        self._results: dict[frozenset[str], TrialResult] = {}
        self._drops: dict[frozenset[str], PairedDrop] = {}

    def result_of(self, items: Items) -> TrialResult | None:
        """Return the result of the trial with exactly these changes.

        `None` if the search did not need that trial.
        """
        return self._results.get(frozenset(items))

    def run(self, left: Items) -> Items:
        """Find and name the culprits in `left`; return the remaining changes.

        All of `left` together show the effect.
        """
        campaign = self._campaign
        # Packages that training opens stand first: the culprit is likely among them.
        ordered = tuple(sorted(left, key=lambda name: name not in campaign.opened))
        num_opened = len(campaign.opened & set(left))
        campaign.say(f"{self._effect}: searching {len(ordered)} changes, of {num_opened} of which training opens files")
        if self._whole is not None:
            self._results[frozenset(ordered)] = self._whole
        if self._drop is not None:
            self._drops[frozenset(ordered)] = self._drop
        searched = self._search(ordered, num_opened)
        if self._effect == "numerics":
            if _is_doubtful(searched) and self._is_flaky(ordered, searched):
                self._results.clear()
                searched = self._search(ordered, num_opened)
            if not any(result.outcome == "same" for result in self._results.values()):
                # Nothing agreed with the current environment so far: it may not agree with itself.
                self._check_reference()
        others = _others(searched)
        for culprits in searched.culprits:
            self._name(culprits, others)
        campaign.is_complete = campaign.is_complete and searched.is_complete
        accused = {name for culprits in searched.culprits for name in culprits.items}
        kept = tuple(name for name in left if not accused & closure([name], campaign.needs))
        if bound := [str(campaign.changes[name]) for name in left if name not in (*kept, *accused)]:
            campaign.notes.append(f"not tried without the culprits, which they need: {', '.join(bound)}")
        return kept

    def _search(self, ordered: Items, num_opened: int) -> SearchResult:
        campaign = self._campaign
        budget = max(1, campaign.options.trials - campaign.progress.num_trials)
        found = find_culprits(ordered, self._ask, needs=campaign.needs, budget=budget, num_first=num_opened)
        return replace(found, culprits=tuple(map(self._named_by_evidence, found.culprits)))

    def _named_by_evidence(self, culprits: CulpritSet) -> CulpritSet:
        """Return the one package that evidence names, of several inseparable ones.

        A version that the trainer refuses is named by its refusal.
        """
        result, needs = self._results.get(frozenset({*culprits.items, *culprits.companions})), self._campaign.needs
        if result is None or any(set(culprits.items) - closure([name], needs) for name in culprits.items):
            return culprits
        codes = {cause.code for cause in result.judgement.causes[:1]} if result.judgement else set()
        named = {failure.package for failure in result.failures} | {_MAKERS.get(code, "") for code in codes}
        owners = tuple(name for name in culprits.items if name in named)
        if len(owners) != 1:
            return culprits
        others = tuple(name for name in culprits.items if name not in owners)
        return replace(culprits, items=owners, companions=(*others, *culprits.companions))

    def _ask(self, items: Items) -> TrialAnswer:
        """Judge a set of changes, repeating passes if results are flaky."""
        if self._effect in _PAIRED:
            return self._paired_answer(items)
        outcomes = _CANNOT_TRAIN if self._effect == "cannot-train" else _DRIFTS
        answer: TrialAnswer = "passes"
        for _ in range(self._campaign.repeats):
            result = self._results[frozenset(items)] = self._campaign.ask(self._trial, items)
            answer = outcomes.get(result.outcome, "unknown")
            if answer != "passes":
                break
        return answer

    def _paired_answer(self, items: Items) -> TrialAnswer:
        """Judge the throughput or memory of a set of changes.

        A set with the culprit has the whole effect, every other set has none. Half of the effect divides them best.
        Pairs that do not decide even that end the search: on so noisy a machine chance would answer for the sets that
        remain.
        """
        assert self._drop is not None  # noqa: S101 - given for this effect
        # Pairs that decided early overstate the effect.
        half = (self._drop.low + self._drop.drop) / 4
        drop, _ = self._campaign.paired(
            items, slower_above=half, fast_below=half, looks=SEARCH_LOOKS, measure=self._drop.measure
        )
        if drop is None:
            return "unknown"
        if drop.outcome == "undecided":
            text = f"{drop.num_pairs} pairs do not decide which change it is"
            least, measure = f"at least {self._drop.least:.1%}", self._drop.measure
            what = f"is {least} slower" if measure == "throughput" else f"needs {least} more {measure}"
            self._campaign.notes.append(f"training {what} with the candidate; {text}")
            raise SearchEndedError(text)
        self._drops[frozenset(items)] = drop
        return "fails" if drop.outcome == "slower" else "passes"

    def _is_flaky(self, items: Items, searched: SearchResult) -> bool:
        """Return whether repeating a drifted candidate passes, or one without a part of a named set drifts."""
        campaign = self._campaign
        expected: dict[Items, TrialOutcome] = {items: "drift"}
        for named in searched.culprits:
            for left_out in named.items if len(named.items) > 1 else ():
                part = tuple(name for name in (*named.items, *named.companions) if name != left_out)
                if left_out not in closure(part, campaign.needs):
                    expected[part] = "same"
        for _ in range(_FLAKY_LOOKS):
            for tried, outcome in expected.items():
                if campaign.ask(self._trial, tried).outcome in {"drift", "same"} - {outcome}:
                    campaign.is_flaky, campaign.repeats = True, _FLAKY_REPEATS
                    campaign.notes.append("the candidate drifts in some trainings only: trials are repeated")
                    return True
        return False

    def _check_reference(self) -> None:
        """Raise `UnsteadyError` if two trainings in the current environment differ.

        It is trained a second time, and compared with the first.
        """
        again = self._campaign.ask(self._campaign.numerics, ())
        if again.outcome != "same":
            raise UnsteadyError(again.judgement)

    def _name(self, culprits: CulpritSet, others: Others) -> None:
        campaign = self._campaign
        together = frozenset({*culprits.items, *culprits.companions})
        result, drop = self._results.get(together), self._drops.get(together)
        known = [campaign.packages[name].links for name in culprits.items if name in campaign.packages]
        culprit = culprit_of(
            self._effect,
            [campaign.changes[name] for name in culprits.items],
            companions=[campaign.changes[name] for name in culprits.companions],
            judgement=result.judgement if result else None,
            failures=result.failures if result else (),
            drop=drop or self._drop,
            others=others,
            # A pass of each part may be a chance of the flaky candidate.
            is_minimal=culprits.is_minimal and not (campaign.is_flaky and len(culprits.items) > 1),
            links={label: url for links in known for label, url in links.items()},
        )
        release_range = self._releases(culprits)
        if release_range is not None:
            sentence = f"{culprit.sentence}; {range_sentence(culprits.items[0], release_range)}"
            culprit = culprit.replace(sentence=sentence, releases=release_range)
        campaign.culprits.append(culprit)

    def _releases(self, culprits: CulpritSet) -> ReleaseRange | None:
        """Find the releases between which a culprit's effect appears.

        `None` if that was not requested, or if there are no releases between.
        """
        campaign, (name, *more) = self._campaign, culprits.items
        change = campaign.changes[name]
        if more or not campaign.options.releases or not has_releases(change):
            return None
        try:
            releases = campaign.ask(Trial(name="x", part="releases"), (name,)).releases
        except SpentError:
            return None
        campaign.say(f"{self._effect}: searching {len(releases)} releases of {name}")
        return search_releases(change, releases, lambda pin: self._release_answer(change, culprits.companions, pin))

    def _release_answer(self, change: PackageChange, companions: Items, pin: Pin) -> TrialAnswer | None:
        """Judge one release of a culprit, with the packages that change along.

        `None` once the budget is spent.
        """
        campaign, item = self._campaign, pin.requirement
        campaign.releases[item] = change.replace(candidate=pin)
        items = (item, *companions)
        try:
            if campaign.ask(Trial(name="x", part="environment"), items).outcome != "same":
                return "unknown"
            return self._ask(items)
        except SpentError:
            return None


def _others(searched: SearchResult) -> Others:
    """Return what is known about the changes that are no culprits."""
    if searched.rest_answer != "passes" or not searched.is_complete:
        return "not judged"
    if len(searched.culprits) > 1:
        return "other culprits"
    return "pass" if searched.rest else "none"


def _is_doubtful(searched: SearchResult) -> bool:
    """Return whether a flaky candidate would explain the search better."""
    return searched.rest_answer != "passes" or any(
        len(culprits.items) > 1 or not culprits.is_minimal for culprits in searched.culprits
    )
