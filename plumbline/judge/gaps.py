"""Evidence that a record should contain and lacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Finding, Outcome

Role = Literal["reference", "candidate"]


@dataclass(frozen=True, slots=True)
class Gap:
    """One item that a record should contain and lacks."""

    check: str
    metric: Statement
    text: Statement
    """Predicate of a sentence about the record, such as `contains no evidence of its data`."""
    outcome: Outcome = "inconclusive"
    observed: int | None = None
    limit: int | None = None
    role: Role | None = None
    """Role in a comparison in which the record needs the item; `None` for both."""

    def finding(self, side: str) -> Finding:
        """Convert the gap to a finding on record `side`."""
        detail = fact("gap.of-side", side=side, what=self.text)
        return Finding(
            check=self.check, outcome=self.outcome, metric=self.metric, observed=self.observed, limit=self.limit,
            detail=detail,
        )  # fmt: skip


def counts(check: str, metric: Statement, observed: int, wanted: int, role: Role | None = None) -> Gap:
    """Return a gap of outcome `invalid` for a wrong number of items."""
    text = fact("gap.count", observed=observed, what=metric, required=wanted)
    return Gap(check, metric, text, "invalid", observed, wanted, role)
