"""Differences that do not accuse the platform that shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Finding, Judgement, worst

__all__ = ["CHECK", "Doubt", "exonerate"]

CHECK = "platform.difference"
J = TypeVar("J", bound=Judgement)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why a difference from another platform is no drift."""

    outcome: Literal["pass", "inconclusive"]
    """`pass`: a person accepted the difference."""
    why: Statement


def exonerate(judged: J, doubt: Doubt, against: str) -> J:
    """Return a judgement without the drift against `against`; its causes stay with the caller."""
    findings = [
        finding.replace(outcome=doubt.outcome) if _accuses(finding, against) else finding
        for finding in judged.findings
        if doubt.outcome != "pass" or not _accuses(finding, against)
    ]
    findings.append(
        Finding(
            check=CHECK,
            outcome=doubt.outcome,
            metric=fact("doubt.difference"),
            against=against,
            detail=doubt.why,
        )
    )
    is_drift = any(finding.outcome == "drift" for finding in findings)
    verdict = judged.verdict if is_drift or judged.verdict != "drift" else worst([each.outcome for each in findings])
    return judged.replace(verdict=verdict, findings=tuple(findings))


def _accuses(finding: Finding, against: str) -> bool:
    return finding.outcome == "drift" and finding.against == against
