"""Choice of a round's reference platform, and of the platforms that drifted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeVar

from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import compare
from plumbline.judge.rungs.proven import unproven
from plumbline.judge.rungs.selfcheck import failed_at
from plumbline.judge.spec_precision import different_precision
from plumbline.judge.stated import contradiction
from plumbline.judge.whole import stands_alone
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PARTS
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Finding, Judgement, worst

CHECK = "platform.difference"
J = TypeVar("J", bound=Judgement)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Reason why a difference from another platform is not drift."""

    outcome: Literal["pass", "inconclusive"]
    """`pass`: a person accepted the difference."""
    why: Statement


def exonerate(judged: J, doubt: Doubt, against: str) -> J:
    """Return the judgement without the drift against platform `against`."""
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


Records = Mapping[str, LoadedRecord]


@dataclass(frozen=True, slots=True)
class TrustedReference:
    """Platform that all other platforms are judged against."""

    name: str
    doubts: Mapping[str, Doubt] = field(default_factory=dict)
    """By platform that differs from it and is not accused."""


def trusted_reference(
    records: Records,
    reference: str,
    baselines: Records,
    gates: Mapping[str, Gates] | None = None,
    *,
    table: Comparisons | None = None,
) -> TrustedReference:
    """Choose the reference platform, and the differences that are not drift.

    The answer is `reference` if every platform agrees with it. Otherwise the accused is who left its own accepted
    baseline, or is wrong by itself, and without such evidence who left the reference. No platform is accused that
    agrees with its own baseline. A reference that lacks what every other platform's record has is replaced.
    """
    table = table if table is not None else Comparisons()
    records = {name: table.whole(record) for name, record in records.items()}
    if reference not in records or not stands_alone(records[reference]):
        return TrustedReference(reference)
    # A record that is invalid by itself, or lacks evidence that the reference has, is not a reference.
    whole = {
        name: record
        for name, record in records.items()
        if stands_alone(record) and "candidate" not in table.of(records[reference], record).lacking
    }
    others = {name: record for name, record in whole.items() if name != reference}
    if others and all(table.of(records[reference], record).lacking == {"reference"} for record in others.values()):
        return trusted_reference(others, next(iter(others)), baselines, gates, table=table)
    evidence = _Evidence({reference: records[reference], **others}, baselines, gates or {}, table)
    if all(evidence.can_agree(reference, name) for name in others):
        return TrustedReference(reference)
    chosen = evidence.choose(reference)
    doubts = {
        name: doubt
        for name in whole
        if evidence.differ(chosen, name) and (doubt := evidence.doubt(name, chosen)) is not None
    }
    return TrustedReference(chosen, doubts)


@dataclass(frozen=True)
class _Evidence:
    """Comparisons between platforms, and of each platform with its own baseline."""

    records: Records
    """The reference's first."""
    baselines: Records
    gates: Mapping[str, Gates]
    table: Comparisons

    def choose(self, reference: str) -> str:
        """Choose as reference the first platform that agrees with its own baseline.

        Without any, `reference`; if its own checks fail, the first platform that passes its own and left no baseline.
        """
        sound = [name for name in self.records if self.steady[name] is not False and name not in self.wrong]
        steady = [name for name in sound if self.steady[name]]
        return next(iter(steady or (sound if reference in self.wrong else ())), reference)

    def doubt(self, name: str, chosen: str) -> Doubt | None:
        """Return why platform `name` is not blamed for a difference, if so."""
        if self.steady[name]:
            return self._between_steady(name, chosen)
        if chosen in self.wrong or self.steady[chosen] is False:
            reason = self.wrong.get(chosen, fact("off.baseline", platform=chosen))
            return Doubt("inconclusive", fact("doubt.none-can-say", chosen=chosen, reason=reason))
        return None

    def differ(self, left: str, right: str) -> bool:
        """Return whether `right` drifts from `left`."""
        return left != right and self._judged(self.records[left], self.records[right], right).verdict == "drift"

    def can_agree(self, left: str, right: str) -> bool:
        """Return whether two platforms agree within the gates."""
        return self._judged(self.records[left], self.records[right], right).verdict not in ("drift", "invalid")

    @cached_property
    def steady(self) -> Mapping[str, bool | None]:
        """Map each platform to whether its own baseline agrees; `None`: not comparable."""
        return {name: self._is_steady(name) for name in self.records}

    @cached_property
    def wrong(self) -> Mapping[str, Statement]:
        """Map platforms to a defect in their own record that not all share."""
        signs = {
            "off.selfcheck": [name for name, record in self.records.items() if failed_at(record) is not None],
            "off.stated": [name for name, record in self.records.items() if _contradicts_itself(record)],
            "off.precision": [name for name, record in self.records.items() if different_precision(record) is not None],
        }
        telling = {code: names for code, names in signs.items() if len(names) < len(self.records)}
        return {name: fact(code, platform=name) for code, names in telling.items() for name in names}

    def _is_steady(self, name: str) -> bool | None:
        record, baseline = self.records[name], self.baselines.get(name)
        if baseline is None or baseline.record.record_id == record.record.record_id:
            return None
        verdict = self._judged(baseline, record, name).verdict
        if verdict == "invalid" and stands_alone(record) and "candidate" in self.table.of(baseline, record).lacking:
            return False
        return {"pass": True, "drift": False}.get(verdict)

    def _judged(self, reference: LoadedRecord, candidate: LoadedRecord, name: str) -> Judgement:
        """Judge two records by platform `name`'s gates, ignoring throughput."""
        gates = self.gates.get(name, Gates())
        return compare(reference, candidate, gates, throughput=False, table=self.table)

    def _between_steady(self, name: str, chosen: str) -> Doubt:
        """Return why two platforms differ although each equals its own baseline.

        A platform whose own checks fail is not steady: beside a steady platform a steady one was chosen.
        """
        accepted = self._judged(self.baselines[chosen], self.baselines[name], name)
        if accepted.verdict == "drift":
            return Doubt("pass", fact("doubt.accepted", chosen=chosen))
        return Doubt("inconclusive", fact("doubt.both-steady", chosen=chosen))


def _contradicts_itself(record: LoadedRecord) -> bool:
    """Return whether a record is wrong by itself: its numbers, or a step beside its definition."""
    own = (contradiction(record, part) for part in PARTS)
    return any(own) or unproven(record.record, "probe") is not None
