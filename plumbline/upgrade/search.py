"""Search for minimal sets of changes that fail.

It finds all of them, in few trials, by QuickXplain (Junker 2004): one culprit in about log2(n) trials, and k that fail
only together in about k log2(n/k). What it names is tried again without each of its items, as some subsets cannot be
judged, and answers need not be monotone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

TrialAnswer = Literal["fails", "passes", "unknown"]
Items = tuple[str, ...]


class SearchEndedError(Exception):
    """Error that ends a search early.

    No more trials are allowed; `ask` raises it, too, when trials cannot decide.
    """


@dataclass(frozen=True, slots=True)
class CulpritSet:
    """One minimal failing set."""

    items: Items
    companions: Items = ()
    """Changes that had to be applied with them, because they need each other."""
    is_minimal: bool = True
    """False where no smaller set could be judged, or the search ended early."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: all minimal failing sets found."""

    culprits: tuple[CulpritSet, ...]
    rest: Items
    """The changes that were not accused."""
    rest_answer: TrialAnswer
    """Of all changes that were not accused, applied together."""
    is_complete: bool = True
    """False where the search ended before everything was explained."""


class _AnswerCache:
    """Cache of answers by set of items.

    Each set is asked once; it is completed by the items that its members need.
    """

    def __init__(
        self,
        items: Items,
        ask: Callable[[Sequence[Items]], Mapping[Items, TrialAnswer]],
        needs: Mapping[str, frozenset[str]],
        budget: int,
    ) -> None:
        self._ask = ask
        self._needs = needs
        self._order = {item: place for place, item in enumerate(items)}
        self._known: dict[Items, TrialAnswer] = {(): "passes"}
        self._left = budget

    def complete(self, items: Sequence[str]) -> Items:
        """Return the items and everything they need, in search order."""
        closure: set[str] = set()
        queue = list(items)
        while queue:
            item = queue.pop()
            if item not in closure:
                closure.add(item)
                queue += [need for need in self._needs.get(item, ()) if need in self._order]
        return tuple(sorted(closure, key=self._order.__getitem__))

    def without(self, items: Items, removed: Sequence[str]) -> Items:
        """Return `items` without `removed` and the items that need them."""
        gone = set(removed)
        return tuple(item for item in items if not gone & set(self.complete([item])))

    def learn(self, items: Items, answer: TrialAnswer) -> None:
        """Store an answer that is known beforehand."""
        self._known[items] = answer

    def ask_all(self, sets: Sequence[Sequence[str]]) -> list[TrialAnswer]:
        """Return each set's answer; ask for new sets together."""
        complete = [self.complete(items) for items in sets]
        new = [items for items in dict.fromkeys(complete) if items not in self._known]
        if len(new) > self._left:
            raise SearchEndedError
        if new:
            self._left -= len(new)
            self._known.update(self._ask(new))
        return [self._known[items] for items in complete]

    def ask(self, items: Sequence[str]) -> TrialAnswer:
        """Return the answer for one set."""
        return self.ask_all([items])[0]


def find_culprits(
    items: Sequence[str],
    ask: Callable[[Sequence[Items]], Mapping[Items, TrialAnswer]],
    *,
    needs: Mapping[str, frozenset[str]] | None = None,
    num_parallel: int | Callable[[], int] = 1,
    budget: int = 200,
) -> SearchResult:
    """Return every minimal failing set of `items`.

    All `items` together fail. `ask` judges several whole sets at once. `num_parallel`: how many; a function where
    machines come and go.
    """
    count = num_parallel if callable(num_parallel) else lambda: num_parallel
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
            culprits, is_minimal = _minimal(cache, rest, count)
        except SearchEndedError:
            return SearchResult(tuple(culprit_sets), rest, "unknown", is_complete=False)
        chosen, companions = _split_companions(cache, culprits)
        culprit_sets.append(CulpritSet(chosen, companions, is_minimal=is_minimal))
        smaller = cache.without(rest, chosen)
        rest = smaller if len(smaller) < len(rest) else ()
    return SearchResult(tuple(culprit_sets), rest, "passes")


def _split_companions(cache: _AnswerCache, culprits: Items) -> tuple[Items, Items]:
    """Split a failing set into culprits and their companions.

    Culprits are the members that no other member needs.
    """
    culprits_only = _tops(cache, culprits)
    return culprits_only, tuple(item for item in culprits if item not in culprits_only)


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


def _minimal(cache: _AnswerCache, items: Items, num_parallel: Callable[[], int]) -> tuple[Items, bool]:
    """Return a minimal failing set without needless companions.

    The second value is whether it is minimal.
    """
    failing, is_minimal = _without_each(cache, _explain(cache, (), items, num_parallel), items, num_parallel)
    current = cache.complete(failing)
    while len(current) > 1:
        tops = _tops(cache, current)
        below = cache.without(current, tops)
        # What the set only brings along is tried at once: torch needs a dozen packages.
        if below and cache.ask(below) == "fails":
            return _minimal(cache, below, num_parallel)
        parts = [closed for top in tops if len(closed := cache.complete([top])) < len(current)]
        smaller = next(
            (part for part, answer in zip(parts, cache.ask_all(parts), strict=True) if answer == "fails"), None
        )
        if smaller is None:
            break
        current = smaller
    return current, is_minimal


def _explain(cache: _AnswerCache, background: Items, candidates: Items, num_parallel: Callable[[], int]) -> Items:
    """Return candidates that are likely to fail with `background`, and not without one of them.

    As many pieces are asked together as can run in parallel. The last piece is not asked for: it is searched with all
    others as background, and an item of it that fails by itself is the answer.
    """
    if len(candidates) == 1:
        return candidates
    size = math.ceil(len(candidates) / (num_parallel() + 1))
    pieces = [candidates[start : start + size] for start in range(0, len(candidates), size)]
    answers = cache.ask_all([(*background, *piece) for piece in pieces[:-1]])
    for piece, answer in zip(pieces, answers, strict=False):
        if answer == "fails":
            return _explain(cache, background, piece, num_parallel)
    others = candidates[: -len(pieces[-1])]
    last = _explain(cache, (*background, *others), pieces[-1], num_parallel)
    if cache.ask(last) == "fails" or cache.ask((*background, *last)) == "fails":
        return last
    return (*_explain(cache, (*background, *last), others, num_parallel), *last)


def _without_each(
    cache: _AnswerCache, likely: Items, items: Items, num_parallel: Callable[[], int]
) -> tuple[Items, bool]:
    """Return a failing set that passes without any one item, and whether all of these trials could be judged.

    It begins with the likely set. Where that does not fail, as some sets cannot be judged or a change undoes another,
    it begins with all items, and leaves out halves, quarters and so on before single items.
    """
    is_likely = cache.ask(likely) == "fails"
    failing, size = (likely, 1) if is_likely else (items, math.ceil(len(items) / 2))
    while len(failing) > 1:
        sets = [(*failing[:start], *failing[start + size :]) for start in range(0, len(failing), size)]
        smaller, answers = _first_failing(cache, sets, failing, num_parallel)
        if smaller is None and size == 1:
            return failing, all(answer == "passes" for answer in answers)
        failing = smaller or failing
        size = min(math.ceil(size / 2) if smaller is None else size, math.ceil(len(failing) / 2))
    return failing, True


def _first_failing(
    cache: _AnswerCache, sets: Sequence[Items], whole: Items, num_parallel: Callable[[], int]
) -> tuple[Items | None, list[TrialAnswer]]:
    """Return the first failing set, and all answers so far.

    As many sets are asked together as can run in parallel.
    """
    answers: list[TrialAnswer] = []
    left = [items for items in sets if cache.complete(items) != cache.complete(whole)]
    while left:
        count = max(1, num_parallel())
        batch, left = left[:count], left[count:]
        answers += cache.ask_all(batch)
        for items, answer in zip(batch, answers[-len(batch) :], strict=True):
            if answer == "fails":
                return items, answers
    return None, answers
