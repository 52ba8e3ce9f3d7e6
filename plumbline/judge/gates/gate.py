"""Interface of a gate: a pass/fail rule on two records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from plumbline.judge.pair import Pair
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import Statement
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Divergence, Finding

Asked = bool | Literal["demanded"]
"""Whether throughput is judged; `demanded`: a pair that cannot be judged is inconclusive."""


@dataclass(frozen=True, slots=True)
class PastNights:
    """What the nights decide of a record's numbers, instead of a gate or beside it."""

    own_throughput: bool = False
    equal_accuracy: Statement = ""
    """Why they show an accuracy equivalent to the baseline's; empty if they do not."""


@dataclass(frozen=True, slots=True)
class GateRequest:
    """Limits and options of one comparison's gates."""

    gates: Gates
    throughput: Asked = True
    confirms: SpeedEvidence | None = None
    """The independent rerun of a run that was too slow."""
    nights: PastNights = PastNights()


@dataclass(frozen=True, slots=True)
class GateResult:
    """Findings and causes of one gate; empty if nothing was measured."""

    findings: tuple[Finding, ...] = ()
    causes: tuple[Cause, ...] = ()
    at: Divergence | None = None
    """Where its drift shows, if no rung of the probe differs before it."""
    unexplained: Cause | None = None
    """The cause of its drift, if no other evidence names a cause."""


Gate = Callable[[Pair, GateRequest], GateResult]
