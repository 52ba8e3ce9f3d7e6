"""Who did it: the search for the culprits of one effect, with the trials that show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from plumbline.schema.verdict import Judgement
from plumbline.upgrade.answer import Others, ReleaseRange
from plumbline.upgrade.bisect import Answer, Culprits, Items, Search, SearchEndedError, find_culprits
from plumbline.upgrade.campaign import Campaign
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.locks.model import Pin
from plumbline.upgrade.progress import SpentError
from plumbline.upgrade.releases import has_releases, range_sentence, search_releases
from plumbline.upgrade.sentences import culprit_of
from plumbline.upgrade.shared_search import baseline_digest, found_of, is_confirmed, search_of
from plumbline.upgrade.throughput import SEARCH_LOOKS, PairedDrop
from plumbline.upgrade.trials import Outcome, Trial, TrialResult

__all__ = ["CulpritSearch", "Effect", "UnsteadyError"]

Effect = Literal["cannot-train", "inputs", "numerics", "speed"]
_LEAST_SHARED = 3
"""Fewer changes are searched in so few trials that other platforms save none."""
_FLAKY_LOOKS = 3
_FLAKY_REPEATS = 6
"""A pass of a flaky candidate counts after this many in a row: one that fails in half of its runs slips by in 1.6%."""
_DRIFTS: dict[Outcome, Answer] = {"drift": "fails", "same": "passes"}
_CANNOT_TRAIN: dict[Outcome, Answer] = {"cannot-train": "fails", "same": "passes", "drift": "passes"}


class UnsteadyError(Exception):
    """The current environment does not agree with itself."""

    def __init__(self, judgement: Judgement | None) -> None:
        super().__init__("the current environment does not agree with itself")
        self.judgement = judgement


class CulpritSearch:
    """Searches the changes of one effect; `trial` is what shows it, `whole` and `drop` the results for all of them."""

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
        self._helpers: set[str] = set()
        """Platforms that answered trials of this search."""

    def result_of(self, items: Items) -> TrialResult | None:
        """Return the result of the trial with exactly these changes; `None` where the search did not need it."""
        return self._results.get(frozenset(items))

    def run(self, left: Items) -> Items:
        """Name the culprits among `left`, which show the effect together; return the changes that remain."""
        campaign = self._campaign
        # Who can reach training stands first: if those alone show the effect, the others are never tried.
        ordered = tuple(sorted(left, key=lambda name: not campaign.is_relevant(name)))
        relevant = tuple(name for name in ordered if campaign.is_relevant(name))
        campaign.say(f"{self._effect}: searching {len(ordered)} changes, {len(relevant)} of which training loads")
        if self._whole is not None:
            self._results[frozenset(ordered)] = self._whole
        if self._drop is not None:
            self._drops[frozenset(ordered)] = self._drop
        searched, num_searched = self._search_with_others(ordered, relevant)
        if self._effect == "numerics":
            if _is_doubtful(searched) and self._is_flaky(ordered):
                self._results.clear()
                searched, num_searched = self._search(ordered, relevant)
            if not any(result.outcome == "same" for result in self._results.values()):
                # Nothing agreed with the current environment so far: it may not agree with itself.
                self._check_reference()
        others = _others(searched, num_changes=len(ordered), num_searched=num_searched)
        for culprits in searched.culprits:
            self._name(culprits, others)
        campaign.is_complete = campaign.is_complete and searched.is_complete
        accused = {name for culprits in searched.culprits for name in culprits.items}
        return tuple(name for name in left if not accused & _closure(name, campaign.needs))

    def _search_with_others(self, ordered: Items, relevant: Items) -> tuple[Search, int]:
        """Search together with the platforms that look for the same; confirm here what was found."""
        campaign, sharing = self._campaign, self._campaign.sharing
        if sharing is None or self._effect == "speed" or len(ordered) < _LEAST_SHARED:
            return self._search(ordered, relevant)
        baseline = baseline_digest(self._effect, self._trial, self._whole, campaign.changes, ordered)
        found = sharing.join(baseline, campaign.changes, campaign.progress.check)
        searched: tuple[Search, int] | None = None
        if found is None:
            searched = self._search(ordered, relevant)
            found = found_of(*searched)
            sharing.publish(found)
            if not self._helpers:
                return searched
        if found.culprits and is_confirmed(found, campaign.needs, self._own_answer):
            return search_of(found), found.num_searched
        helpers = f" ({', '.join(sorted(self._helpers))})" if self._helpers else ""
        campaign.notes.append(f"other platforms{helpers} answer differently: the culprit was searched here alone")
        return self._search(ordered, relevant)

    def _own_answer(self, items: Items) -> Answer:
        """Return the answer of a trial on this platform."""
        known = self.result_of(items)
        if known is None:
            return self._answers([items])[items]
        outcomes = _CANNOT_TRAIN if self._effect == "cannot-train" else _DRIFTS
        return outcomes.get(known.outcome, "unknown")

    def _search(self, ordered: Items, relevant: Items) -> tuple[Search, int]:
        """Search the changes that training loads; all of them where those alone do not show the effect."""
        campaign = self._campaign
        options: dict[str, Any] = {
            "needs": campaign.needs, "num_parallel": lambda: campaign.trials.num_parallel,
            "budget": max(1, campaign.budget.trials - campaign.progress.num_trials),
        }  # fmt: skip
        ask = self._speed_answers if self._effect == "speed" else self._answers
        try:
            if relevant and len(relevant) < len(ordered) and ask([relevant])[relevant] == "fails":
                return find_culprits(relevant, ask, **options), len(relevant)
        except SearchEndedError:
            return Search((), ordered, "unknown", is_complete=False), len(ordered)
        return find_culprits(ordered, ask, **options), len(ordered)

    def _answers(self, sets: Sequence[Items]) -> dict[Items, Answer]:
        """Ask for several sets at once; one that passes is asked again where the candidate is flaky."""
        outcomes = _CANNOT_TRAIN if self._effect == "cannot-train" else _DRIFTS
        answers: dict[Items, Answer] = {}
        waiting = list(sets)
        for _ in range(self._campaign.repeats):
            for items, result in self._campaign.ask_many(self._trial, waiting).items():
                if result.is_elsewhere:
                    self._helpers.add(result.worker)
                else:
                    self._results[frozenset(items)] = result
                answers[items] = outcomes.get(result.outcome, "unknown")
            waiting = [items for items in waiting if answers[items] == "passes"]
            if not waiting:
                break
        return answers

    def _speed_answers(self, sets: Sequence[Items]) -> Mapping[Items, Answer]:
        """Answer for each set: a culprit has the whole effect, all other changes have none.

        Half of the effect divides them best. Pairs that do not decide even that end the search: on so noisy a machine
        chance would answer for the sets that remain.
        """
        assert self._drop is not None  # noqa: S101 - given for this effect
        # Pairs that decided early overstate the effect.
        half = (self._drop.low + self._drop.drop) / 4
        answers: dict[Items, Answer] = {}
        for items in sets:
            found, _ = self._campaign.paired(items, slower_above=half, fast_below=half, looks=SEARCH_LOOKS)
            if found is None:
                answers[items] = "unknown"
                continue
            if found.outcome == "undecided":
                text = f"{found.num_pairs} pairs do not decide which change it is"
                self._campaign.notes.append(f"training is {self._drop.drop:.1%} slower with the candidate; {text}")
                raise SearchEndedError(text)
            self._drops[frozenset(items)] = found
            answers[items] = "fails" if found.outcome == "slower" else "passes"
        return answers

    def _is_flaky(self, items: Items) -> bool:
        """Return whether the candidate passes in one of a few repeats, after it drifted."""
        campaign = self._campaign
        for _ in range(_FLAKY_LOOKS):
            if campaign.ask(self._trial, items).outcome == "same":
                campaign.is_flaky, campaign.repeats = True, _FLAKY_REPEATS
                campaign.notes.append("the candidate drifts in some trainings only: trials are repeated")
                return True
        return False

    def _check_reference(self) -> None:
        """Raise `UnsteadyError` unless a second training of the current environment agrees with the first."""
        own = self._campaign.ask(self._campaign.numerics, ())
        if own.outcome != "same":
            raise UnsteadyError(own.judgement)

    def _name(self, culprits: Culprits, others: Others) -> None:
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
            drop=drop.drop if drop else self._drop.drop if self._drop else None,
            others=others,
            is_minimal=culprits.is_minimal,
            links={label: url for links in known for label, url in links.items()},
        )
        found = self._releases(culprits)
        if found is not None:
            sentence = f"{culprit.sentence}; {range_sentence(culprits.items[0], found)}"
            culprit = culprit.replace(sentence=sentence, releases=found)
        campaign.culprits.append(culprit)

    def _releases(self, culprits: Culprits) -> ReleaseRange | None:
        """Search the releases of a single culprit; `None` where that is not asked for, or where there are none."""
        campaign, (name, *more) = self._campaign, culprits.items
        change = campaign.changes[name]
        if more or not campaign.searches_releases or not has_releases(change):
            return None
        try:
            releases = campaign.ask(Trial(name="x", part="releases"), (name,)).releases
        except SpentError:
            return None
        campaign.say(f"{self._effect}: searching {len(releases)} releases of {name}")
        return search_releases(change, releases, lambda pin: self._release_answer(change, culprits.companions, pin))

    def _release_answer(self, change: PackageChange, companions: Items, pin: Pin) -> Answer | None:
        """Judge a release of a culprit with the same companions; `None` once the budget is spent."""
        campaign, item = self._campaign, pin.requirement
        campaign.releases[item] = change.replace(candidate=pin)
        items = (item, *companions)
        ask = self._speed_answers if self._effect == "speed" else self._answers
        try:
            if campaign.ask(Trial(name="x", part="environment"), items).outcome != "same":
                return "unknown"
            return ask([items])[items]
        except SpentError:
            return None


def _others(searched: Search, *, num_changes: int, num_searched: int) -> Others:
    """Return what is known of the changes that are not accused."""
    if searched.rest_answer != "passes" or not searched.is_complete:
        return "not judged"
    if len(searched.culprits) > 1:
        return "other culprits"
    if not searched.rest:
        return "none" if num_searched == num_changes else "not loaded"
    return "pass" if num_searched == num_changes else "loaded pass"


def _is_doubtful(searched: Search) -> bool:
    """Return whether a culprit that drifts now and then explains the search better than what it found."""
    return searched.rest_answer != "passes" or any(
        len(culprits.items) > 1 or not culprits.is_minimal for culprits in searched.culprits
    )


def _closure(name: str, needs: Mapping[str, frozenset[str]]) -> set[str]:
    found: set[str] = set()
    queue = [name]
    while queue:
        item = queue.pop()
        if item not in found:
            found.add(item)
            queue += needs.get(item, ())
    return found
