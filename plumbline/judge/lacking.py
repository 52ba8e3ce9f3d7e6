"""Findings on missing evidence, for the completeness checks."""

from __future__ import annotations

from plumbline.schema.verdict import Finding, Outcome

__all__ = ["counts", "lacks"]


def lacks(check: str, outcome: Outcome, metric: str, detail: str, *numbers: int) -> Finding:
    """Return a finding; `numbers` are the observed and the required number."""
    observed, limit = (*numbers, None, None)[:2]
    return Finding(check=check, outcome=outcome, metric=metric, observed=observed, limit=limit, detail=detail)


def counts(check: str, metric: str, observed: int, wanted: int, side: str) -> Finding:
    """Return an invalid finding on a wrong number of items."""
    detail = f"the {side} contains {observed} {metric} instead of {wanted}"
    return lacks(check, "invalid", metric, detail, observed, wanted)
