"""RunRecord: results of one training, immutable, as JSON with safetensors and Parquet parts.

A record is a folder: its parts, and `record.json`, written last, which lists them with size and digest. A folder
without `record.json` is partial.

A night has the time of the controller's clock. A worker's clock may be days off. Ordered by it, a night would stand
before nights that were judged, or after all that are still to come, and the engine, which decides on the newest night,
would decide on none.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, field_validator

from plumbline.schema.base import Label, Model, Name, Sha256, Step
from plumbline.schema.captured import Spec
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import INFRASTRUCTURE, CorruptDataError, InvalidInputError
from plumbline.schema.evidence import Evidence
from plumbline.schema.experiment import Experiment
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.manifest import DataFile
from plumbline.schema.versions import read_any_version

RECORD_NAME = "record.json"
MAX_RECORD_BYTES = 64 << 20
"""1.7 times the largest honest record, see `plumbline.schema.base`, where the number of its values is bounded too."""
MAX_PARTS = 64
MAX_PART_BYTES = 8 << 30
_MAX_PARTS_BYTES = 16 << 30
"""Maximum bytes of all parts of a record together."""
MAX_MESSAGE = 4000
_MAX_TIMINGS = 1000
Seconds = Annotated[float, Field(ge=-1e9, le=1e9)]
Moment = Annotated[
    AwareDatetime, Field(ge=datetime(1970, 1, 1, tzinfo=timezone.utc), lt=datetime(2200, 1, 1, tzinfo=timezone.utc))
]
"""A time by the worker's clock, which may be wrong, in a range that every time zone can show."""


class Exit(Model):
    """How a training ended: status and error."""

    status: Literal["completed", "failed"]
    code: Label = ""
    """Of a failure, one of `plumbline.schema.errors.RECORD_CODES` or of the trainer's own: `non-finite`,
    `out-of-memory`, `labels`, `weights`, `tokenizer`, `device` ..."""
    message: str = Field(default="", max_length=MAX_MESSAGE)
    part: Label = ""
    step: Step | None = None

    @property
    def is_infrastructure(self) -> bool:
        """Return whether the machine or a service failed, not training itself."""
        return self.status == "failed" and self.code in INFRASTRUCTURE


class RunRecord(Model):
    """Record of one run of a RunSpec on a platform."""

    schema_version: Literal[1] = 1
    record_id: Name
    platform: Name
    round_id: Label = ""
    attempt: int = Field(default=0, ge=0, le=1_000_000)
    nonce: str = Field(default="", max_length=128)
    """Nonce of the record's order; empty without an order."""
    spec_sha256: Sha256
    spec: Spec
    experiment: Experiment | None = None
    started_at: Moment
    finished_at: Moment
    fingerprint: Fingerprint
    evidence: Evidence
    timings: dict[Label, Seconds] = Field(default={}, max_length=_MAX_TIMINGS)
    """Seconds spent: `import`, `stage`, `data_wait`, `probe`, `speed`, `learn`, `write` ..."""
    exit: Exit
    parts: tuple[DataFile, ...] = Field(default=(), max_length=MAX_PARTS, fail_fast=True)

    @field_validator("parts")
    @classmethod
    def _can_be_kept(cls, parts: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """Reject record files with colliding names or excessive sizes."""
        names = [part.key.lower() for part in parts]
        for part, name in zip(parts, names, strict=True):
            inside = any(other.startswith(f"{name}/") for other in names)
            if name.split("/", 1)[0] == RECORD_NAME or names.count(name) > 1 or inside:
                raise ValueError(f"{part.key!r} collides with a different part")
            if part.size > MAX_PART_BYTES:
                raise ValueError(f"{part.key!r} has {part.size} bytes")
        if (size := sum(part.size for part in parts)) > _MAX_PARTS_BYTES:
            raise ValueError(f"the parts have {size} bytes together")
        return parts

    @property
    def seconds(self) -> float:
        """Return the training's duration by the worker's clock."""
        return (self.finished_at - self.started_at).total_seconds()


def read_record(folder: Path, *, verify: bool = True) -> RunRecord:
    """Read the record in `folder`; with `verify`, check its files' digests.

    Raises `InvalidInputError` for a partial or malformed record, and `CorruptDataError` for a part with wrong bytes.
    """
    path = folder / RECORD_NAME
    if not path.is_file():
        why = "no such folder" if not folder.is_dir() else f"contains no {RECORD_NAME}: the record is partial"
        raise InvalidInputError(why, where=str(folder), hint="name the folder of a finished training")
    record = parse_record(path)
    check_content(record, str(path))
    for part in record.parts if verify else ():
        check_part(folder, part)
    return record


def parse_record(source: bytes | Path, *, where: str = "") -> RunRecord:
    """Parse an untrusted record, also of a different release.

    An unknown key of its spec is refused: the training may have been a different one.
    """
    return read_any_version(
        RunRecord, source, version_at="fingerprint.plumbline", exact=("spec", "experiment"), where=where,
        max_bytes=MAX_RECORD_BYTES,
    )  # fmt: skip


def check_content(record: RunRecord, where: str) -> None:
    """Raise `InvalidInputError` if a record from outside contradicts itself."""
    if record.spec.digest != record.spec_sha256:
        raise InvalidInputError("is not the digest of the spec in it", where=where, key="spec_sha256")
    probe = record.evidence.probe
    # A failed training leaves taps of the step that it did not finish; an evaluation counts as the step after the last.
    last = max((tap.step for tap in probe.taps), default=0) if probe else 0
    if probe and max(last, probe.evaluation.step if probe.evaluation else 0) > probe.num_steps:
        text = f"has taps or an evaluation after its {probe.num_steps} steps"
        raise InvalidInputError(text, where=where, key="evidence.probe")


def check_part(folder: Path, part: DataFile) -> None:
    """Raise `CorruptDataError` unless the file exists with the expected bytes."""
    path = folder / part.key
    # A link at any level would read, and publish, a file outside the record.
    if path.resolve() != folder.resolve() / part.key or not path.is_file():
        raise CorruptDataError("is missing from the record", where=str(path))
    if path.stat().st_size != part.size or digest_file(path) != part.sha256:
        raise CorruptDataError("does not match the digest in its record", where=str(path))


ROUND_TIME = "%Y%m%d-%H%M%S"
"""Start of a round's name: its time in UTC."""
_NAMED = re.compile(r"(\d{8}-\d{6})-")
CLOCK_TOLERANCE = timedelta(days=1)
"""Maximum by which a worker's clock may differ from the controller's."""


def night_time(round_id: str, started_at: datetime, now: datetime | None = None) -> datetime:
    """Return the time in the round's name.

    Of a round that a user named, return the training's start by the worker's clock, or `now`, the controller's time, if
    that is more than a day away.
    """
    if (named := named_time(round_id)) is not None:
        return named
    return started_at if now is None or abs(started_at - now) <= CLOCK_TOLERANCE else now


def named_time(round_id: str) -> datetime | None:
    """Return the time in the round's name, or `None` if user-named."""
    named = _NAMED.match(round_id)
    try:
        return datetime.strptime(named[1], ROUND_TIME).replace(tzinfo=timezone.utc) if named else None
    except ValueError:
        return None  # a user's name that only looks like a time
