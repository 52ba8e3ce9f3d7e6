"""Choice of the platform that all others are judged against."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.judge.comparison import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.selfcheck import failed_at
from plumbline.judge.tolerance import floor_of
from plumbline.judge.validity import stands_alone
from plumbline.records import LoadedRecord

__all__ = ["own_error", "trusted_reference"]

Records = Mapping[str, LoadedRecord]


def trusted_reference(records: Records, reference: str, baselines: Records) -> str:
    """Return the platform to judge the others against.

    The answer is `reference` if every platform agrees with it, or if it agrees with its own baseline. Otherwise the
    platforms that agree with their own baselines vote, or all platforms if none has a baseline: the largest group that
    agrees with each other provides the reference. Among groups of equal size, a platform near its own fp64 run wins.
    Only two other platforms, its own baseline, or its own selfcheck can remove a platform from its place.
    """
    if reference not in records or not stands_alone(records[reference]):
        return reference
    # A record that is invalid by itself has no vote.
    records = {name: record for name, record in records.items() if stands_alone(record)}
    others = [name for name in records if name != reference]
    if not any(_differ(records[reference], records[name]) for name in others):
        return reference
    if failed_at(records[reference]) is not None:
        passed = [name for name in others if _passed_selfcheck(records[name])]
        return passed[0] if passed else reference
    health = {name: _is_healthy(records[name], baselines.get(name)) for name in records}
    if health[reference]:
        return reference
    healthy = [name for name in others if health[name]]
    if healthy and health[reference] is False:
        return _pivot(records, healthy, reference)
    return _pivot(records, list(records), reference) if len(records) > 2 else reference


def own_error(records: Records, name: str, other: str) -> float | None:
    """Return the worst relative error of a first forward pass against fp64."""
    pair = Pair(records[other], records[name])
    return max((tap.own[1] for tap in pair.errors(0, "forward") if tap.own[1] is not None), default=None)


def _is_healthy(record: LoadedRecord, baseline: LoadedRecord | None) -> bool | None:
    """Return whether a record agrees with its own baseline; `None` if not comparable."""
    if baseline is None or baseline.record.record_id == record.record.record_id:
        return None
    verdict = compare(baseline, record, throughput=False).verdict
    return {"pass": True, "drift": False}.get(verdict)


def _differ(record: LoadedRecord, other: LoadedRecord) -> bool:
    return compare(record, other, throughput=False).verdict == "drift"


def _agree(record: LoadedRecord, other: LoadedRecord) -> bool:
    return compare(record, other, throughput=False).verdict == "pass"


def _pivot(records: Records, names: list[str], reference: str) -> str:
    """Return the reference, or the first platform, of the largest agreeing group."""
    groups = {name: sum(_agree(records[name], records[other]) for other in records) for name in names}
    largest = [name for name in names if groups[name] == max(groups.values())]
    sound = [name for name in largest if not _is_off(records, name)] or largest
    return reference if reference in sound else sound[0]


def _passed_selfcheck(record: LoadedRecord) -> bool:
    check = record.record.evidence.selfcheck
    return check is not None and check.verdict == "pass"


def _is_off(records: Records, name: str) -> bool:
    """Return whether a selfcheck failed, or the distance to fp64 exceeds rounding."""
    if failed_at(records[name]) is not None:
        return True
    probe = records[name].record.spec.probe
    error = own_error(records, name, name)
    return probe is not None and error is not None and error > floor_of("forward", probe.precision)
