"""Search for the changes that break something: the smallest failing sets, all of them, in few trials.

Halving finds one culprit in about log2(n) trials. Where it does not explain the failure, QuickXplain (Junker 2004, a
minimal failing set in about k log2(n/k) trials) finds sets that fail only together, and delta debugging (Zeller and
Hildebrandt 2002) settles what neither does: subsets that cannot be judged, and answers that are not monotone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Answer", "Culprits", "Search", "SearchEndedError", "find_culprits"]

Answer = Literal["fails", "passes", "unknown"]
Items = tuple[str, ...]


class SearchEndedError(Exception):
    """The search ends early: no more trials are allowed, or `ask` raises this as trials decide nothing."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """One minimal failing set."""

    items: Items
    companions: Items = ()
    """Changes that had to be applied with them, because they need each other."""
    is_minimal: bool = True
    """False where no smaller set could be judged, or the search ended early."""


@dataclass(frozen=True, slots=True)
class Search:
    """All minimal failing sets that were found."""

    culprits: tuple[Culprits, ...]
    rest: Items
    """The changes that were not accused."""
    rest_answer: Answer
    """Of all changes that were not accused, applied together."""
    is_complete: bool = True
    """False where the search ended before everything was explained."""


class _Asker:
    """Answers by set of items, each asked once; a set is completed by what its items need."""

    def __init__(
        self,
        items: Items,
        ask: Callable[[Sequence[Items]], Mapping[Items, Answer]],
        needs: Mapping[str, frozenset[str]],
        budget: int,
    ) -> None:
        self._ask = ask
        self._needs = needs
        self._order = {item: place for place, item in enumerate(items)}
        self._known: dict[Items, Answer] = {(): "passes"}
        self._left = budget

    def complete(self, items: Sequence[str]) -> Items:
        """Return the items with all that they need, in the order of the search."""
        found: set[str] = set()
        queue = list(items)
        while queue:
            item = queue.pop()
            if item not in found:
                found.add(item)
                queue += [need for need in self._needs.get(item, ()) if need in self._order]
        return tuple(sorted(found, key=self._order.__getitem__))

    def without(self, items: Items, removed: Sequence[str]) -> Items:
        """Return `items` less `removed` and all that needs one of those."""
        gone = set(removed)
        return tuple(item for item in items if not gone & set(self.complete([item])))

    def learn(self, items: Items, answer: Answer) -> None:
        """Record an answer that is known beforehand."""
        self._known[items] = answer

    def many(self, sets: Sequence[Sequence[str]]) -> list[Answer]:
        """Return the answers for several sets, asked at once where they are new."""
        complete = [self.complete(items) for items in sets]
        new = [items for items in dict.fromkeys(complete) if items not in self._known]
        if len(new) > self._left:
            raise SearchEndedError
        if new:
            self._left -= len(new)
            self._known.update(self._ask(new))
        return [self._known[items] for items in complete]

    def one(self, items: Sequence[str]) -> Answer:
        return self.many([items])[0]


def find_culprits(
    items: Sequence[str],
    ask: Callable[[Sequence[Items]], Mapping[Items, Answer]],
    *,
    needs: Mapping[str, frozenset[str]] | None = None,
    num_parallel: int | Callable[[], int] = 1,
    budget: int = 200,
) -> Search:
    """Return every minimal failing set of `items`, which fail together; `ask` judges whole sets, several at once.

    `num_parallel`: how many; a function where machines come and go.
    """
    count = num_parallel if callable(num_parallel) else lambda: num_parallel
    everything = tuple(items)
    asker = _Asker(everything, ask, needs or {}, budget)
    asker.learn(asker.complete(everything), "fails")
    found: list[Culprits] = []
    rest = everything
    while rest:
        try:
            answer = asker.one(rest)
            if answer != "fails":
                return Search(tuple(found), rest, answer)
            culprits, is_minimal = _minimal(asker, rest, count)
        except SearchEndedError:
            return Search(tuple(found), rest, "unknown", is_complete=False)
        chosen, companions = _split_companions(asker, culprits)
        found.append(Culprits(chosen, companions, is_minimal=is_minimal))
        smaller = asker.without(rest, chosen)
        rest = smaller if len(smaller) < len(rest) else ()
    return Search(tuple(found), rest, "passes")


def _split_companions(asker: _Asker, culprits: Items) -> tuple[Items, Items]:
    """Return the members that nothing else in the set needs, and the others."""
    tops = _tops(asker, culprits)
    return tops, tuple(item for item in culprits if item not in tops)


def _tops(asker: _Asker, items: Items) -> Items:
    """Return the members that no other member needs; all of them where each needs all others."""
    return tuple(
        item
        for item in items
        if not any(item in asker.complete([other]) for other in items if other != item)
        or all(set(asker.complete([other])) >= set(items) for other in items)
    )


def _minimal(asker: _Asker, items: Items, num_parallel: Callable[[], int]) -> tuple[Items, bool]:
    """Return a minimal failing set, without those of its members that only bring a culprit along."""
    found = _by_halving(asker, items, num_parallel)
    if found is None:
        found = _by_quickxplain(asker, items)
    is_minimal = True
    if found is None:
        found, is_minimal = _by_delta_debugging(asker, items, num_parallel)
    current = asker.complete(found)
    while len(current) > 1:
        tops = _tops(asker, current)
        below = asker.without(current, tops)
        # What the set only brings along is tried at once: torch needs a dozen packages.
        if below and asker.one(below) == "fails":
            return _minimal(asker, below, num_parallel)
        parts = [closed for top in tops if len(closed := asker.complete([top])) < len(current)]
        smaller = next((part for part, answer in zip(parts, asker.many(parts), strict=True) if answer == "fails"), None)
        if smaller is None:
            break
        current = smaller
    return current, is_minimal


def _pieces(items: Items, count: int) -> list[Items]:
    size = max(1, math.ceil(len(items) / count))
    return [items[start : start + size] for start in range(0, len(items), size)]


def _by_halving(asker: _Asker, items: Items, num_parallel: Callable[[], int]) -> Items | None:
    """Return the one item that explains the failure; `None` where no single item does."""
    current = items
    while len(current) > 1:
        pieces = _pieces(current, num_parallel() + 1)
        answers = asker.many(pieces[:-1])
        failing = next((piece for piece, answer in zip(pieces, answers, strict=False) if answer == "fails"), None)
        # What is left over is not asked for: the last item is, once it stands alone.
        unknown = tuple(
            item for piece, answer in zip(pieces, answers, strict=False) if answer == "unknown" for item in piece
        )
        if failing is None and unknown and asker.one(pieces[-1]) != "fails":
            return None
        current = pieces[-1] if failing is None else failing
    return current if asker.one(current) == "fails" else None


def _by_quickxplain(asker: _Asker, items: Items) -> Items | None:
    """Return a minimal set that fails together; `None` where subsets cannot be judged or are not monotone."""

    def explain(background: Items, is_changed: bool, candidates: Items) -> Items | None:
        if is_changed:
            answer = asker.one(background)
            if answer == "unknown":
                return None
            if answer == "fails":
                return ()
        if len(candidates) == 1:
            return candidates
        middle = len(candidates) // 2
        left, right = candidates[:middle], candidates[middle:]
        second = explain((*background, *left), bool(left), right)
        if second is None:
            return None
        first = explain((*background, *second), bool(second), left)
        return None if first is None else (*first, *second)

    found = explain((), False, items)
    if not found or asker.one(found) != "fails":
        return None
    without_one = [tuple(other for other in found if other != item) for item in found]
    sets = [items for items in without_one if items]
    return found if all(answer == "passes" for answer in asker.many(sets)) else None


def _by_delta_debugging(asker: _Asker, items: Items, num_parallel: Callable[[], int]) -> tuple[Items, bool]:
    """Return a failing set of which no tried part fails, and whether every smaller one was judged."""
    changes, count, is_minimal = items, 2, True
    while len(changes) > 1:
        chunks = _pieces(changes, count)
        rests = [tuple(item for item in changes if item not in chunk) for chunk in chunks]
        tried = chunks if len(chunks) <= 2 else [*chunks, *rests]
        smaller, answers = _first_failing(asker, tried, changes, num_parallel)
        if smaller is not None:
            count = 2 if smaller in chunks else max(count - 1, 2)
            changes = smaller
        elif count >= len(changes):
            is_minimal = all(answer == "passes" for answer in answers)
            break
        else:
            count = min(2 * count, len(changes))
    return changes, is_minimal


def _first_failing(
    asker: _Asker, sets: Sequence[Items], whole: Items, num_parallel: Callable[[], int]
) -> tuple[Items | None, list[Answer]]:
    """Return the first set that fails, and the answers so far; as many sets are asked at once as run at once."""
    answers: list[Answer] = []
    left = [items for items in sets if asker.complete(items) != asker.complete(whole)]
    while left:
        count = max(1, num_parallel())
        asked, left = left[:count], left[count:]
        answers += asker.many(asked)
        for items, answer in zip(asked, answers[-len(asked) :], strict=True):
            if answer == "fails":
                return items, answers
    return None, answers
