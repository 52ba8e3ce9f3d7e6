"""The Baseline: which records of one RunSpec on one platform are approved, and how much their speed varies."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from plumbline.judge.noise import NoiseFloor, noise_floor
from plumbline.schema.base import Model, Name, Sha256
from plumbline.schema.record import RunRecord

__all__ = ["MAX_ACCEPTED", "Accepted", "Baseline", "accepted", "with_record", "without_record"]

MAX_ACCEPTED = 50


class Accepted(Model):
    """One approved record, with the numbers that the noise floor is made of."""

    record_id: Name
    started_at: AwareDatetime
    round_id: str = ""
    samples_per_second: float | None = None
    accuracy: float | None = None
    lock_sha256: str = ""


class Baseline(Model):
    """The approved records of a RunSpec on a platform, the newest last."""

    schema_version: Literal[1] = 1
    spec_sha256: Sha256
    platform: Name
    workload: Name
    records: tuple[Accepted, ...] = Field(default=(), max_length=MAX_ACCEPTED)
    noise: NoiseFloor = NoiseFloor(runs=0)

    @property
    def current(self) -> str | None:
        """The record that the next one is held against: the one accepted last."""
        return self.records[-1].record_id if self.records else None


def accepted(record: RunRecord) -> Accepted:
    """What a baseline keeps of a record."""
    speed, learn = record.evidence.speed, record.evidence.learn
    return Accepted(
        record_id=record.record_id,
        started_at=record.started_at,
        round_id=record.round_id,
        samples_per_second=speed.samples_per_second if speed else None,
        accuracy=learn.evaluations[-1].accuracy if learn and learn.evaluations else None,
        lock_sha256=record.fingerprint.lock_sha256,
    )


def with_record(baseline: Baseline, record: RunRecord) -> Baseline:
    """The baseline with `record` accepted last; accepting it again moves it there."""
    kept = [one for one in baseline.records if one.record_id != record.record_id]
    return _measured(baseline, (*kept, accepted(record))[-MAX_ACCEPTED:])


def without_record(baseline: Baseline, record_id: str) -> Baseline:
    """The baseline with one record taken out."""
    return _measured(baseline, tuple(one for one in baseline.records if one.record_id != record_id))


def _measured(baseline: Baseline, records: tuple[Accepted, ...]) -> Baseline:
    speeds = [one.samples_per_second for one in records if one.samples_per_second is not None]
    return baseline.replace(records=[one.model_dump() for one in records], noise=noise_floor(speeds).model_dump())
