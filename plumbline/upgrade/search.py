"""Search for minimal failing sets of changes, and releases. Pure.

It finds all of them, in few trials, by QuickXplain (Junker 2004): one culprit in about log2(n) trials, and k that fail
only together in about k log2(n/k). What it names is tried again without each of its items, as some subsets cannot be
judged, and answers need not be monotone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from plumbline.environments.changes import PackageChange
from plumbline.environments.locks.model import Pin
from plumbline.schema.escape import first_of
from plumbline.upgrade.answer import ReleaseRange

TrialAnswer = Literal["fails", "passes", "unknown"]
Items = tuple[str, ...]


class SearchEndedError(Exception):
    """Error that ends a search early, such as a spent budget.

    No more trials are allowed; `ask` raises it, too, when trials cannot decide.
    """


@dataclass(frozen=True, slots=True)
class CulpritSet:
    """One minimal failing set of changes."""

    items: Items
    companions: Items = ()
    """Changes that had to be applied with them, because they need each other."""
    is_minimal: bool = True
    """False where no smaller set could be judged, or the search ended early."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All minimal failing sets that a search found."""

    culprits: tuple[CulpritSet, ...]
    rest: Items
    """The changes that were not accused."""
    rest_answer: TrialAnswer
    """Of all changes that were not accused, applied together."""
    is_complete: bool = True
    """False where the search ended before everything was explained."""


def closure(items: Iterable[str], needs: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the items and everything that these need."""
    found: set[str] = set()
    queue = list(items)
    while queue:
        item = queue.pop()
        if item not in found:
            found.add(item)
            queue += needs.get(item, ())
    return found


class _AnswerCache:
    """Cache of trial results by set of changes.

    Each set is asked once; it is completed by the items that its members need.
    """

    def __init__(
        self, items: Items, ask: Callable[[Items], TrialAnswer], needs: Mapping[str, frozenset[str]], budget: int
    ) -> None:
        self._ask = ask
        self._needs = needs
        self._order = {item: place for place, item in enumerate(items)}
        self._known: dict[Items, TrialAnswer] = {(): "passes"}
        self._left = budget

    def complete(self, items: Iterable[str]) -> Items:
        """Return the items and all their needed items, in search order."""
        return tuple(sorted(closure(items, self._needs) & self._order.keys(), key=self._order.__getitem__))

    def without(self, items: Items, removed: Sequence[str]) -> Items:
        """Return `items` without `removed` and without items that need a removed one."""
        gone = set(removed)
        return tuple(item for item in items if not gone & set(self.complete([item])))

    def learn(self, items: Items, answer: TrialAnswer) -> None:
        """Store a result that is known in advance."""
        self._known[items] = answer

    def ask(self, items: Iterable[str]) -> TrialAnswer:
        """Return the result for one set, cached."""
        complete = self.complete(items)
        if complete not in self._known:
            if not self._left:
                raise SearchEndedError
            self._left -= 1
            self._known[complete] = self._ask(complete)
        return self._known[complete]


def find_culprits(
    items: Sequence[str], ask: Callable[[Items], TrialAnswer], *, needs: Mapping[str, frozenset[str]] | None = None,
    budget: int = 200, num_first: int = 0,
) -> SearchResult:  # fmt: skip
    """Return every minimal failing set of `items`.

    All `items` together fail. `ask` judges one whole set. The first `num_first` items are asked before any half.
    """
    everything = tuple(items)
    cache = _AnswerCache(everything, ask, needs or {}, budget)
    cache.learn(cache.complete(everything), "fails")
    culprit_sets: list[CulpritSet] = []
    rest = everything
    while rest:
        try:
            answer = cache.ask(rest)
            if answer != "fails":
                return SearchResult(tuple(culprit_sets), rest, answer)
            culprits, is_minimal = _minimal(cache, rest, len({*rest} & {*everything[:num_first]}))
        except SearchEndedError:
            return SearchResult(tuple(culprit_sets), rest, "unknown", is_complete=False)
        chosen = _tops(cache, culprits)
        companions = tuple(item for item in culprits if item not in chosen)
        culprit_sets.append(CulpritSet(chosen, companions, is_minimal=is_minimal))
        smaller = cache.without(rest, chosen)
        rest = smaller if len(smaller) < len(rest) else ()
    return SearchResult(tuple(culprit_sets), rest, "passes")


def _tops(cache: _AnswerCache, items: Items) -> Items:
    """Return the members that no other member needs.

    If each member needs all others, return all.
    """
    return tuple(
        item
        for item in items
        if not any(item in cache.complete([other]) for other in items if other != item)
        or all(set(cache.complete([other])) >= set(items) for other in items)
    )


def _minimal(cache: _AnswerCache, items: Items, num_first: int = 0) -> tuple[Items, bool]:
    """Return a minimal failing set, including the items that its members need.

    The second value is whether it is minimal.
    """
    failing, is_minimal = _without_each(cache, _explain(cache, (), items, num_first), items)
    current = cache.complete(failing)
    while len(current) > 1:
        tops = _tops(cache, current)
        below = cache.without(current, tops)
        # What the set only brings along is tried at once: torch needs a dozen packages.
        if below and cache.ask(below) == "fails":
            return _minimal(cache, below)
        parts = [closed for top in tops if len(closed := cache.complete([top])) < len(current)]
        smaller = next((part for part in parts if cache.ask(part) == "fails"), None)
        if smaller is None:
            break
        current = smaller
    return current, is_minimal


def _explain(cache: _AnswerCache, background: Items, candidates: Items, num_first: int = 0) -> Items:
    """Return a small subset that probably fails together with `background`.

    The second half is not asked for: it is searched with the first as background, and an item of it that fails by
    itself is the answer.
    """
    if len(candidates) == 1:
        return candidates
    half = num_first if 0 < num_first < len(candidates) else math.ceil(len(candidates) / 2)
    first, second = candidates[:half], candidates[half:]
    if cache.ask((*background, *first)) == "fails":
        return _explain(cache, background, first)
    last = _explain(cache, (*background, *first), second)
    if cache.ask(last) == "fails" or cache.ask((*background, *last)) == "fails":
        return last
    return (*_explain(cache, (*background, *last), first), *last)


def _without_each(cache: _AnswerCache, likely: Items, items: Items) -> tuple[Items, bool]:
    """Shrink to a failing set where every item is needed.

    Start with the likely set. If that does not fail, as some sets cannot be judged or a change undoes another,
    start with all items, and leave out halves, quarters and so on before single items.
    """
    is_likely = cache.ask(likely) == "fails"
    failing, size = (likely, 1) if is_likely else (items, math.ceil(len(items) / 2))
    while len(failing) > 1:
        sets = [(*failing[:start], *failing[start + size :]) for start in range(0, len(failing), size)]
        sets = [smaller for smaller in sets if cache.complete(smaller) != cache.complete(failing)]
        found = next((smaller for smaller in sets if cache.ask(smaller) == "fails"), None)
        if found is None and size == 1:
            return failing, all(cache.ask(smaller) == "passes" for smaller in sets)
        failing = found or failing
        size = min(math.ceil(size / 2) if found is None else size, math.ceil(len(failing) / 2))
    return failing, True


def search_releases(
    change: PackageChange, releases: Sequence[Pin], ask: Callable[[Pin], TrialAnswer | None]
) -> ReleaseRange | None:
    """Return the two adjacent releases between which the effect appears.

    The earlier one does not have the effect, the later one has it. The current release is known not to have the effect,
    the candidate's to have it. `ask` returns "unknown" for a release that cannot be tried, which is skipped, and `None`
    once no more trials are allowed. An effect that was reverted in between has several such pairs: one of them is
    found.
    """
    if not releases or change.current is None or change.candidate is None:
        return None
    low, high = -1, len(releases)
    skipped: set[int] = set()
    num_tried = 0
    while left := [place for place in range(low + 1, high) if place not in skipped]:
        place = left[len(left) // 2]
        answer = ask(releases[place])
        if answer is None:
            break
        num_tried += 1
        if answer == "unknown":
            skipped.add(place)
        elif answer == "fails":
            high = place
        else:
            low = place
    return ReleaseRange(
        without=change.current.version if low < 0 else releases[low].version,
        with_effect=change.candidate.version if high == len(releases) else releases[high].version,
        unknown=tuple(releases[place].version for place in range(low + 1, high)),
        num_tried=num_tried,
    )


def range_sentence(package: str, releases: ReleaseRange) -> str:
    """Describe a release range in a sentence."""
    line = f"{package} {releases.with_effect} has this effect, {releases.without} does not"
    if not releases.unknown:
        return f"of its releases, {line}"
    return f"of its releases, {line}, and {first_of(releases.unknown, 3)} could not be tried"
