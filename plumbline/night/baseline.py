"""Baselines: accepted records of each platform, stored in the central store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from pydantic import AwareDatetime, Field

from plumbline.night.central import CentralStore
from plumbline.night.noise_floor import NoiseFloor, noise_floor
from plumbline.schema.base import Model, Name, Sha256, read_model
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.record import RunRecord

_FOLDER = "baselines"

MAX_ACCEPTED = 50
MAX_LOG = 400


class Accepted(Model):
    """One accepted record, with its numbers for the noise floor."""

    record_id: Name
    started_at: AwareDatetime
    round_id: str = ""
    samples_per_second: float | None = None
    accuracy: float | None = None
    lock_sha256: str = ""
    suite: str = ""
    """Suite of the record's round."""


class DecisionNote(Model):
    """Author, time, reason and suite of a decision on a baseline."""

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
    """Accepted records of a RunSpec on a platform, newest last."""

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
        """Return the reference for the next record: the last accepted record."""
        return self.records[-1].record_id if self.records else None


def accepted(record: RunRecord, suite: str = "") -> Accepted:
    """Return a record's entry in a baseline."""
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
    """Return the baseline with `record` appended as newest accepted record."""
    note = note or DecisionNote()
    entry = accepted(record, note.suite)
    kept = [entry for entry in baseline.records if entry.record_id != record.record_id]
    first = baseline.anchor or (baseline.records[0] if baseline.records else None)
    anchor = entry if first is None or note.as_anchor else first
    logged = LogEntry(action="accept", record_id=record.record_id, note=note)
    return _measured(baseline, (*kept, entry)[-MAX_ACCEPTED:], logged, anchor=anchor)


def without_record(baseline: Baseline, record_id: str, note: DecisionNote | None = None) -> Baseline:
    """Return the baseline without a record, which `restored` can undo."""
    gone = tuple(record for record in baseline.records if record.record_id == record_id)
    left = tuple(record for record in baseline.records if record.record_id != record_id)
    anchor = baseline.anchor
    if anchor is not None and anchor.record_id == record_id:
        anchor = left[0] if left else None
    rejected = (*(entry for entry in baseline.rejected if entry.record_id != record_id), *gone)[-MAX_ACCEPTED:]
    logged = LogEntry(action="reject", record_id=record_id, note=note or DecisionNote())
    return _measured(baseline, left, logged, anchor=anchor, rejected=rejected)


def restored(baseline: Baseline, record_id: str, note: DecisionNote | None = None) -> Baseline:
    """Return the baseline with a rejected record accepted again, sorted by time."""
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


def baseline_key(spec_sha256: str, platform: str) -> str:
    """Return a baseline's key in the central store."""
    return f"{_FOLDER}/{spec_sha256}/{platform}.json"


class BaselineBook:
    """All baselines in the central store, by RunSpec and platform."""

    def __init__(self, central: CentralStore) -> None:
        self._central = central

    def read(self, spec_sha256: str, platform: str) -> Baseline | None:
        """Return a baseline, or `None` without accepted records."""
        key = baseline_key(spec_sha256, platform)
        data = self._central.read_document(key)
        baseline = self._parsed(key, data) if data is not None else None
        return baseline if baseline is not None and baseline.records else None

    def list(self) -> tuple[tuple[Baseline, ...], dict[str, str]]:
        """Return all non-empty baselines, and reasons of damaged ones by key."""
        baselines, damaged = self.everything()
        return tuple(baseline for baseline in baselines if baseline.records), damaged

    def everything(self) -> tuple[tuple[Baseline, ...], dict[str, str]]:
        """Return all baselines, including empty ones, and reasons of damaged ones."""
        baselines: list[Baseline] = []
        damaged: dict[str, str] = {}
        for key in [info.key for info in self._central.store.list(f"{_FOLDER}/") if info.key.endswith(".json")]:
            try:
                if (data := self._central.read_document(key)) is not None:
                    baselines.append(self._parsed(key, data))
            except InvalidInputError as error:
                damaged[key] = str(error)
        return tuple(baselines), damaged

    def accept(self, record: RunRecord, note: DecisionNote | None = None) -> Baseline:
        """Accept a record; raise `InvalidInputError` if unfit as a reference."""
        problem = _unfit(record)
        if problem:
            raise InvalidInputError(problem, where=record.record_id, hint="accept a record of a completed training")
        empty = Baseline(spec_sha256=record.spec_sha256, platform=record.platform, workload=record.spec.workload)
        key = baseline_key(record.spec_sha256, record.platform)
        return self._change(key, lambda baseline: with_record(baseline or empty, record, note))

    def reject(
        self, spec_sha256: str, platform: str, record_id: str | None = None, note: DecisionNote | None = None
    ) -> Baseline:
        """Remove a record from a baseline, by default the current one."""

        def change(baseline: Baseline | None) -> Baseline:
            if baseline is None or not baseline.records:
                raise ConfigurationError("has no accepted record", where=f"baseline of {platform}")
            name = record_id or baseline.current
            if name is None or name not in {record.record_id for record in baseline.records}:
                hint = "`plumbline baseline show` lists them"
                raise ConfigurationError(
                    f"does not contain the record {name}", where=f"baseline of {platform}", hint=hint
                )
            return without_record(baseline, name, note)

        return self._change(baseline_key(spec_sha256, platform), change)

    def restore(
        self, spec_sha256: str, platform: str, record_id: str | None = None, note: DecisionNote | None = None
    ) -> Baseline:
        """Restore a rejected record, by default the last one rejected."""

        def change(baseline: Baseline | None) -> Baseline:
            names = [entry.record_id for entry in baseline.rejected] if baseline is not None else []
            name = record_id or (names[-1] if names else None)
            if baseline is None or name is None or name not in names:
                hint = "`plumbline baseline log` lists the rejected records"
                raise ConfigurationError("has no such rejected record", where=f"baseline of {platform}", hint=hint)
            return restored(baseline, name, note)

        return self._change(baseline_key(spec_sha256, platform), change)

    def _parsed(self, key: str, data: bytes) -> Baseline:
        return read_model(Baseline, data, where=f"{self._central.store.url}/{key}")

    def _change(self, key: str, change: Callable[[Baseline | None], Baseline]) -> Baseline:
        """Update a stored baseline, treating a damaged one as empty."""
        changed: list[Baseline] = []

        def apply(data: bytes | None) -> bytes:
            before = None
            with suppress(InvalidInputError):
                before = self._parsed(key, data) if data is not None else None
            changed.append(change(before))
            return canonical_json(changed[-1].to_json())

        self._central.change_document(key, apply)
        return changed[-1]


def _unfit(record: RunRecord) -> str:
    if record.exit.status != "completed":
        return f"the training failed: {record.exit.message or record.exit.code}"
    if record.experiment is not None:
        return "is the record of an experiment, not of a training"
    missing = [part for part in record.spec.parts if getattr(record.evidence, part) is None]
    return f"contains no evidence of {', '.join(missing)}" if missing else ""
