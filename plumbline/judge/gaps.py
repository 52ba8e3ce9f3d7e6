"""Required items that a record lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Finding, Outcome

Role = Literal["reference", "candidate"]


@dataclass(frozen=True, slots=True)
class Gap:
    """One item that a record should have and lacks."""

    check: str
    outcome: Outcome
    metric: Statement
    text: Statement
    """Predicate of a sentence about the record, such as `contains no evidence of its data`."""
    observed: int | None = None
    limit: int | None = None
    role: Role | None = None
    """Role in a comparison in which the record needs the item; `None` for both."""

    def finding(self, side: str) -> Finding:
        """Return the finding on the record called `side`, such as `reference` or `rerun`."""
        detail = fact("gap.of-side", side=side, what=self.text)
        return Finding(
            check=self.check, outcome=self.outcome, metric=self.metric, observed=self.observed, limit=self.limit,
            detail=detail,
        )  # fmt: skip


def lacks(
    check: str, outcome: Outcome, metric: Statement, text: Statement, *numbers: int, role: Role | None = None
) -> Gap:
    """Return a gap; `numbers` are the observed and the required number."""
    observed, limit = (*numbers, None, None)[:2]
    return Gap(check, outcome, metric, text, observed, limit, role)


def counts(check: str, metric: Statement, observed: int, wanted: int, *, role: Role | None = None) -> Gap:
    """Return a gap for a wrong number of items."""
    return lacks(
        check,
        "invalid",
        metric,
        fact("gap.count", observed=observed, what=metric, required=wanted),
        observed,
        wanted,
        role=role,
    )
