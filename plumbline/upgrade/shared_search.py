"""Conversion and confirmation of a shared search's result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from plumbline.digest import digest_json
from plumbline.upgrade.bisect import Answer, CulpritSet, Items, SearchResult
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.search_messages import SharedCulprits, SharedResult
from plumbline.upgrade.trials import Trial, TrialResult

__all__ = ["baseline_digest", "is_confirmed", "search_of", "shared_result"]


def baseline_digest(
    effect: str, trial: Trial, whole: TrialResult | None, changes: Mapping[str, PackageChange], items: Items
) -> str:
    """Return a digest that identifies a search.

    It is equal where two platforms search the same changes for the same effect.
    """
    judgement = whole.judgement if whole else None
    failures = (
        [(failure.stage, failure.package, failure.library, failure.exception) for failure in whole.failures]
        if whole
        else []
    )
    question = trial.replace(name="x", changes=())
    divergence = judgement.first_divergence if judgement else None
    return digest_json([
        effect, question.to_json(), divergence.to_json() if divergence else None, failures,
        [changes[name].to_json() for name in items],
    ])  # fmt: skip


def shared_result(search: SearchResult, num_searched: int) -> SharedResult:
    """Return the result that other platforms may confirm.

    Empty if the search left a question open.
    """
    is_clear = search.is_complete and search.rest_answer == "passes"
    if not is_clear or not all(culprits.is_minimal for culprits in search.culprits):
        return SharedResult()
    culprits = tuple(SharedCulprits(items=found.items, companions=found.companions) for found in search.culprits)
    return SharedResult(culprits=culprits, rest=search.rest, num_searched=num_searched)


def search_of(shared: SharedResult) -> SearchResult:
    """Return the finished search that had this result."""
    return SearchResult(
        tuple(CulpritSet(culprits.items, culprits.companions) for culprits in shared.culprits), shared.rest, "passes"
    )


def is_confirmed(shared: SharedResult, needs: Mapping[str, frozenset[str]], answer: Callable[[Items], Answer]) -> bool:
    """Return whether this platform's trials confirm the culprits.

    Each culprit fails alone, no part of a set fails, and all other changes pass.
    """
    for culprits in shared.culprits:
        together = (*culprits.items, *culprits.companions)
        if answer(together) != "fails":
            return False
        for item in culprits.items if len(culprits.items) > 1 else ():
            smaller = tuple(name for name in together if item != name and item not in needs.get(name, frozenset()))
            if smaller and answer(smaller) != "passes":
                return False
    return not shared.rest or answer(shared.rest) == "passes"
