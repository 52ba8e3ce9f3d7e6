"""Baseline: approved records of a RunSpec on a platform, with anchor and log."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from plumbline.history.noise import NoiseFloor, noise_floor
from plumbline.schema.base import Model, Name, Sha256
from plumbline.schema.record import RunRecord

MAX_ACCEPTED = 50
MAX_LOG = 400


class Accepted(Model):
    """One approved record, with its numbers for the noise floor."""

    record_id: Name
    started_at: AwareDatetime
    round_id: str = ""
    samples_per_second: float | None = None
    accuracy: float | None = None
    lock_sha256: str = ""
    suite: str = ""
    """Suite of the record's round; empty for old entries."""


class DecisionNote(Model):
    """Author, time, reason and suite of a decision."""

    who: str = ""
    when: AwareDatetime | None = None
    why: str = ""
    suite: str = ""
    forced: bool = False
    """Whether the record was accepted although its round did not pass."""
    as_anchor: bool = False
    """Whether the record becomes the anchor, the reference for cumulative loss."""


class LogEntry(Model):
    """One decision on a baseline."""

    action: Literal["accept", "reject", "restore"]
    record_id: Name
    note: DecisionNote = DecisionNote()


class Baseline(Model):
    """Approved records of a RunSpec on a platform, the newest last."""

    schema_version: Literal[1] = 1
    spec_sha256: Sha256
    platform: Name
    workload: Name
    records: tuple[Accepted, ...] = Field(default=(), max_length=MAX_ACCEPTED)
    noise: NoiseFloor = NoiseFloor(runs=0)
    anchor: Accepted | None = None
    """First accepted record: kept when the list is full, and replaced by a decision only."""
    rejected: tuple[Accepted, ...] = Field(default=(), max_length=MAX_ACCEPTED)
    """Rejected records, the newest last, which can be restored."""
    log: tuple[LogEntry, ...] = Field(default=(), max_length=MAX_LOG)

    @property
    def current(self) -> str | None:
        """Return the reference for the next record: the last record accepted."""
        return self.records[-1].record_id if self.records else None


def accepted(record: RunRecord, suite: str = "") -> Accepted:
    """Return the entry of a record in a baseline."""
    speed, learn = record.evidence.speed, record.evidence.learn
    return Accepted(
        record_id=record.record_id,
        started_at=record.started_at,
        round_id=record.round_id,
        samples_per_second=speed.samples_per_second if speed else None,
        accuracy=learn.evaluations[-1].accuracy if learn and learn.evaluations else None,
        lock_sha256=record.fingerprint.lock_sha256,
        suite=suite,
    )


def with_record(baseline: Baseline, record: RunRecord, note: DecisionNote | None = None) -> Baseline:
    """Return the baseline with `record` accepted last."""
    note = note or DecisionNote()
    entry = accepted(record, note.suite)
    kept = [entry for entry in baseline.records if entry.record_id != record.record_id]
    first = baseline.anchor or (baseline.records[0] if baseline.records else None)
    anchor = entry if first is None or note.as_anchor else first
    logged = LogEntry(action="accept", record_id=record.record_id, note=note)
    return _measured(baseline, (*kept, entry)[-MAX_ACCEPTED:], logged, anchor=anchor)


def without_record(baseline: Baseline, record_id: str, note: DecisionNote | None = None) -> Baseline:
    """Return the baseline without a record, which `restored` can add again."""
    gone = tuple(record for record in baseline.records if record.record_id == record_id)
    left = tuple(record for record in baseline.records if record.record_id != record_id)
    anchor = baseline.anchor
    if anchor is not None and anchor.record_id == record_id:
        anchor = left[0] if left else None
    rejected = (*(entry for entry in baseline.rejected if entry.record_id != record_id), *gone)[-MAX_ACCEPTED:]
    logged = LogEntry(action="reject", record_id=record_id, note=note or DecisionNote())
    return _measured(baseline, left, logged, anchor=anchor, rejected=rejected)


def restored(baseline: Baseline, record_id: str, note: DecisionNote | None = None) -> Baseline:
    """Return the baseline with a rejected record back in order of time."""
    back = tuple(entry for entry in baseline.rejected if entry.record_id == record_id)
    left = tuple(entry for entry in baseline.rejected if entry.record_id != record_id)
    records = tuple(sorted((*baseline.records, *back), key=lambda entry: entry.started_at))[-MAX_ACCEPTED:]
    logged = LogEntry(action="restore", record_id=record_id, note=note or DecisionNote())
    return _measured(
        baseline, records, logged, anchor=baseline.anchor or (records[0] if records else None), rejected=left
    )


def _measured(
    baseline: Baseline,
    records: tuple[Accepted, ...],
    entry: LogEntry,
    *,
    anchor: Accepted | None,
    rejected: tuple[Accepted, ...] | None = None,
) -> Baseline:
    speeds = [record.samples_per_second for record in records if record.samples_per_second is not None]
    return baseline.model_copy(
        update={
            "records": records,
            "noise": noise_floor(speeds),
            "anchor": anchor,
            "rejected": baseline.rejected if rejected is None else rejected,
            "log": (*baseline.log, entry)[-MAX_LOG:],
        }
    )
