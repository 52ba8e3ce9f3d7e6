"""Pure: what a shared search found, as a message and back, and the trials with which a platform confirms it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plumbline.digest import digest_json
from plumbline.upgrade.bisect import Answer, Culprits, Items, Search
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.seat import Found, FoundCulprits
from plumbline.upgrade.trials import Trial, TrialResult

__all__ = ["baseline_digest", "found_of", "is_confirmed", "search_of"]


def baseline_digest(
    effect: str, trial: Trial, whole: TrialResult | None, changes: Mapping[str, PackageChange], items: Items
) -> str:
    """Return a digest that is equal where two platforms search the same changes for the same effect."""
    judgement = whole.judgement if whole else None
    failures = [(one.stage, one.package, one.library, one.exception) for one in whole.failures] if whole else []
    asked = trial.replace(name="x", changes=())
    divergence = judgement.first_divergence if judgement else None
    return digest_json([
        effect, asked.to_json(), divergence.to_json() if divergence else None, failures,
        [changes[name].to_json() for name in items],
    ])  # fmt: skip


def found_of(search: Search, num_searched: int) -> Found:
    """Return what other platforms may confirm; nothing where the search left a question open."""
    is_clear = search.is_complete and search.rest_answer == "passes"
    if not is_clear or not all(culprits.is_minimal for culprits in search.culprits):
        return Found()
    culprits = tuple(FoundCulprits(items=one.items, companions=one.companions) for one in search.culprits)
    return Found(culprits=culprits, rest=search.rest, num_searched=num_searched)


def search_of(found: Found) -> Search:
    """Return the search that ends with these culprits."""
    return Search(tuple(Culprits(one.items, one.companions) for one in found.culprits), found.rest, "passes")


def is_confirmed(found: Found, needs: Mapping[str, frozenset[str]], answer: Callable[[Items], Answer]) -> bool:
    """Return whether each culprit fails alone, no part of a set does, and all other changes pass."""
    for culprits in found.culprits:
        together = (*culprits.items, *culprits.companions)
        if answer(together) != "fails":
            return False
        for item in culprits.items if len(culprits.items) > 1 else ():
            smaller = tuple(name for name in together if item != name and item not in needs.get(name, frozenset()))
            if smaller and answer(smaller) != "passes":
                return False
    return not found.rest or answer(found.rest) == "passes"
