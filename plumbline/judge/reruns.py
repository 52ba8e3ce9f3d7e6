"""Reruns of a training's speed part: whether one may confirm or refute a drop. Pure."""

from __future__ import annotations

from plumbline.errors import InvalidInputError
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord

__all__ = ["rerun_problem"]


def rerun_problem(record: LoadedRecord, rerun: LoadedRecord) -> str:
    """Return why a rerun of `record` neither confirms nor refutes a drop; empty if it may."""
    own, other = (side.record.fingerprint.hardware_class for side in (record, rerun))
    if other != own:
        return f"ran on {other}, the training on {own}"
    if rerun.record.spec.speed != record.record.spec.speed:
        return "measured a speed part with a different spec"
    try:
        missing = next((finding.detail for finding in whole(rerun).defects("rerun")), "")
    except InvalidInputError as error:
        return f"could not be read: {error}"
    if rerun.record.evidence.speed is None:
        return "measured no speed part"
    return f"lacked evidence: {missing}" if missing else ""
