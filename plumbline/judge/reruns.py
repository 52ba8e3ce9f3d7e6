"""Reruns of a training's speed part: whether one may confirm or refute a drop. Pure."""

from __future__ import annotations

from plumbline.errors import InvalidInputError
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact

__all__ = ["rerun_problem"]


def rerun_problem(record: LoadedRecord, rerun: LoadedRecord) -> Statement:
    """Return why a rerun of `record` neither confirms nor refutes a drop; empty if it may."""
    own, other = (side.record.fingerprint.hardware_class for side in (record, rerun))
    if other != own:
        return fact("rerun.ran-on", machine=other, training=own)
    if rerun.record.spec.speed != record.record.spec.speed:
        return fact("rerun.different-spec")
    try:
        missing = next((finding.detail for finding in whole(rerun).defects("rerun")), "")
    except InvalidInputError as error:
        return fact("rerun.unreadable", error=error)
    if rerun.record.evidence.speed is None:
        return fact("rerun.no-speed")
    return fact("rerun.lacked", what=missing) if missing else ""
