"""Choice of the platform that all others are judged against, and of those that its difference accuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import compare
from plumbline.judge.exoneration import Doubt
from plumbline.judge.rungs.selfcheck import failed_at
from plumbline.judge.spec_precision import different_precision
from plumbline.judge.tolerance import FACTOR, floor_of
from plumbline.judge.whole import stands_alone
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement, Outcome

__all__ = ["TrustedReference", "own_error", "trusted_reference"]

Records = Mapping[str, LoadedRecord]


@dataclass(frozen=True, slots=True)
class TrustedReference:
    """Platform that the others are judged against."""

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
    """Return the platform to judge the others against, and the differences that are no drift.

    The answer is `reference` if every platform agrees with it, or if it agrees with its own baseline. Otherwise the
    platforms that agree with their own baselines vote. Without any, all sound platforms vote: their own baseline,
    selfcheck and fp64 run do not speak against them. The largest group that agrees with each other provides the
    reference. No platform is accused that agrees with its own baseline, and none by a reference with less evidence. A
    reference that lacks what every other platform's record has is replaced.
    """
    table = table if table is not None else Comparisons()
    records = {name: table.whole(record) for name, record in records.items()}
    if reference not in records or not stands_alone(records[reference]):
        return TrustedReference(reference)
    # A record that is invalid by itself, or lacks evidence that the reference has, has no vote.
    whole = {
        name: record
        for name, record in records.items()
        if stands_alone(record) and "candidate" not in table.of(records[reference], record).lacking
    }
    others = {name: record for name, record in whole.items() if name != reference}
    if others and all(table.of(records[reference], record).lacking == {"reference"} for record in others.values()):
        return trusted_reference(others, next(iter(others)), baselines, gates, table=table)
    witnesses = _Witnesses(whole, baselines, gates or {}, table)
    if all(witnesses.can_agree(reference, name) for name in others):
        return TrustedReference(reference)
    chosen = witnesses.choose(reference)
    doubts = {
        name: doubt
        for name in whole
        if witnesses.differ(chosen, name) and (doubt := witnesses.doubt(name, chosen, reference)) is not None
    }
    return TrustedReference(chosen, doubts)


def own_error(table: Comparisons, record: LoadedRecord, other: LoadedRecord) -> float | None:
    """Return the worst relative error of a record's first forward pass against fp64, at the tensors that both have."""
    pair = table.of(other, record).pair
    return max((tap.own[1] for tap in pair.errors(0, "forward") if tap.own[1] is not None), default=None)


@dataclass(frozen=True)
class _Witnesses:
    """Evidence of each platform on itself, and comparisons of two platforms."""

    records: Records
    baselines: Records
    gates: Mapping[str, Gates]
    table: Comparisons

    def choose(self, reference: str) -> str:
        """Return the platform with the best evidence, `reference` in case of a draw."""
        if self.health[reference]:
            return reference
        healthy = [name for name, is_healthy in self.health.items() if is_healthy]
        voters = [name for name in healthy if name in self.sound] or healthy or list(self.sound)
        groups = {name: sum(self._agree(name, other) for other in self.sound) for name in voters}
        largest = [name for name in voters if groups[name] == max(groups.values())]
        if not largest or reference in largest:
            return reference
        # A single platform without a baseline replaces only a reference that is off by itself.
        has_evidence = healthy or groups[largest[0]] > 1 or reference in self.off
        return largest[0] if has_evidence else reference

    def doubt(self, name: str, chosen: str, reference: str) -> Doubt | None:
        """Return why `name`, which differs from `chosen`, is not accused; `None` if it is."""
        if self.health[name]:
            return self._between_healthy(name, chosen)
        if self.health[chosen]:
            if chosen not in self.off or name in self.off:
                return None
            return Doubt("inconclusive", fact("doubt.chosen-is-off", chosen=chosen, reason=self.off[chosen], name=name))
        if chosen not in self.sound:
            reason = self.off.get(chosen, fact("off.baseline", platform=chosen))
            return Doubt("inconclusive", fact("doubt.none-can-say", chosen=chosen, reason=reason))
        is_supported = chosen == reference or any(self._agree(chosen, other) for other in self.sound if other != chosen)
        if is_supported or name not in self.sound:
            return None
        why = fact("doubt.no-evidence", chosen=chosen)
        return Doubt("inconclusive", why)

    def differ(self, left: str, right: str) -> bool:
        """Return whether `right` drifts from `left`."""
        return left != right and self._verdict(left, right) == "drift"

    def can_agree(self, left: str, right: str) -> bool:
        """Return whether nothing shows a difference; records that cannot be judged together differ, too."""
        return self._verdict(left, right) not in ("drift", "invalid")

    @cached_property
    def health(self) -> Mapping[str, bool | None]:
        """Return whether each platform agrees with its own baseline; `None` if not comparable."""
        return {name: self._is_healthy(name) for name in self.records}

    @cached_property
    def off(self) -> Mapping[str, Statement]:
        """Return why a platform is wrong by itself; what all platforms share tells none apart."""
        signs = {
            "off.selfcheck": self._where(lambda name: failed_at(self.records[name]) is not None),
            "off.precision": self._where(lambda name: different_precision(self.records[name]) is not None),
            "off.fp64": self._where(self._is_far),
        }
        telling = {code: names for code, names in signs.items() if len(names) < len(self.records)}
        return {name: fact(code, platform=name) for code, names in telling.items() for name in names}

    def _where(self, shows: Callable[[str], bool]) -> list[str]:
        return [name for name in self.records if shows(name)]

    def _is_far(self, name: str) -> bool:
        """Return whether a platform is further from its own fp64 run than rounding, and than others."""
        probe, error = self.records[name].record.spec.probe, self._own_errors.get(name)
        if probe is None or error is None:
            return False
        return error > max(floor_of("forward", probe.precision), FACTOR * min(self._own_errors.values()))

    @cached_property
    def _own_errors(self) -> Mapping[str, float]:
        errors = {name: own_error(self.table, self.records[name], self.records[name]) for name in self.records}
        return {name: error for name, error in errors.items() if error is not None}

    @cached_property
    def sound(self) -> Sequence[str]:
        """Return the platforms that nothing speaks against."""
        return [name for name in self.records if self.health[name] is not False and name not in self.off]

    def _is_healthy(self, name: str) -> bool | None:
        record, baseline = self.records[name], self.baselines.get(name)
        if baseline is None or baseline.record.record_id == record.record.record_id:
            return None
        verdict = self._judged(baseline, record, name).verdict
        if verdict == "invalid" and stands_alone(record) and "candidate" in self.table.of(baseline, record).lacking:
            return False
        return {"pass": True, "drift": False}.get(verdict)

    def _verdict(self, left: str, right: str) -> Outcome:
        return self._judged(self.records[left], self.records[right], right).verdict

    def _judged(self, reference: LoadedRecord, candidate: LoadedRecord, name: str) -> Judgement:
        """Judge a pair by the gates of the platform `name`, without its speed."""
        gates = self.gates.get(name, Gates())
        return compare(reference, candidate, gates, throughput=False, table=self.table)

    def _agree(self, left: str, right: str) -> bool:
        return self._verdict(left, right) == "pass"

    def _between_healthy(self, name: str, chosen: str) -> Doubt:
        """Return whether two platforms that agree with their own baselines differ as these do."""
        accepted = self._judged(self.baselines[chosen], self.baselines[name], name)
        if accepted.verdict == "drift":
            return Doubt("pass", fact("doubt.accepted", chosen=chosen))
        why = fact("doubt.both-steady", chosen=chosen)
        return Doubt("inconclusive", why)
