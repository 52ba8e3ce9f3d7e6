"""Which platform the others are judged against: the reference, unless the evidence says that it is the one off."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.judge.comparison import compare
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import floor_of
from plumbline.judge.validity import stands_alone
from plumbline.records import LoadedRecord

__all__ = ["own_error", "trusted_reference"]

Records = Mapping[str, LoadedRecord]


def trusted_reference(records: Records, reference: str, baselines: Records) -> str:
    """Return the platform to judge the others against.

    That is `reference` where every platform agrees with it, or where it agrees with its own baseline. Otherwise the
    platforms that agree with their own baselines are asked, all platforms where none has one: the largest group that
    agrees with each other provides the reference, among groups of one size one that is close to its own fp64 run.
    A platform has to stand against at least two others, or against its own baseline, before it loses its place.
    """
    if reference not in records or not stands_alone(records[reference]):
        return reference
    # A record that cannot be judged by itself supports and accuses nobody.
    records = {name: record for name, record in records.items() if stands_alone(record)}
    others = [name for name in records if name != reference]
    if not any(_differ(records[reference], records[name]) for name in others):
        return reference
    health = {name: _is_healthy(records[name], baselines.get(name)) for name in records}
    if health[reference]:
        return reference
    healthy = [name for name in others if health[name]]
    if healthy and health[reference] is False:
        return _pivot(records, healthy, reference)
    return _pivot(records, list(records), reference) if len(records) > 2 else reference


def own_error(records: Records, name: str, other: str) -> float | None:
    """Return the worst distance of a platform's outputs at the first step from its own fp64 run, if it measured any."""
    pair = Pair(records[other], records[name])
    return max((tap.own[1] for tap in pair.errors(0, "forward") if tap.own[1] is not None), default=None)


def _is_healthy(record: LoadedRecord, baseline: LoadedRecord | None) -> bool | None:
    """Return whether a record agrees with its platform's own baseline; `None` without one that can be compared."""
    if baseline is None or baseline.record.record_id == record.record.record_id:
        return None
    verdict = compare(baseline, record, throughput=False).verdict
    return {"pass": True, "drift": False}.get(verdict)


def _differ(one: LoadedRecord, other: LoadedRecord) -> bool:
    return compare(one, other, throughput=False).verdict == "drift"


def _agree(one: LoadedRecord, other: LoadedRecord) -> bool:
    return compare(one, other, throughput=False).verdict == "pass"


def _pivot(records: Records, names: list[str], reference: str) -> str:
    """Return the first platform of the largest group that agrees; the reference where it is in one of that size."""
    groups = {name: sum(_agree(records[name], records[other]) for other in records) for name in names}
    largest = [name for name in names if groups[name] == max(groups.values())]
    sound = [name for name in largest if not _is_off(records, name)] or largest
    return reference if reference in sound else sound[0]


def _is_off(records: Records, name: str) -> bool:
    """Return whether a platform is further from its own fp64 run than rounding in its precision explains."""
    probe = records[name].record.spec.probe
    error = own_error(records, name, name)
    return probe is not None and error is not None and error > floor_of("forward", probe.precision)
