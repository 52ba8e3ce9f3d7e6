"""RunRecord: results of one training, immutable, as JSON with safetensors and Parquet parts.

A record is a folder: its parts, and `record.json`, written last, which lists them with size and digest. A folder
without `record.json` is partial.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field

from plumbline.digest import digest_file
from plumbline.errors import INFRASTRUCTURE, CorruptDataError, InvalidInputError
from plumbline.schema.base import Model, Name, Sha256, read_model
from plumbline.schema.evidence import Evidence
from plumbline.schema.experiment import Experiment
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.manifest import DataFile
from plumbline.schema.spec import RunSpec

__all__ = [
    "MAX_MESSAGE",
    "MAX_PARTS",
    "MAX_RECORD_BYTES",
    "RECORD_NAME",
    "Exit",
    "RunRecord",
    "read_record",
]

RECORD_NAME = "record.json"
MAX_RECORD_BYTES = 64 << 20
MAX_PARTS = 64
MAX_MESSAGE = 4000
_MAX_TIMINGS = 1000


class Exit(Model):
    """Status of the training's end."""

    status: Literal["completed", "failed"]
    code: str = ""
    """Of a failure, one of `plumbline.errors.RECORD_CODES` or of the trainer's own: `non-finite`, `out-of-memory`,
    `labels`, `weights`, `tokenizer`, `device` ..."""
    message: str = Field(default="", max_length=MAX_MESSAGE)
    part: str = ""
    step: int | None = None

    @property
    def is_infrastructure(self) -> bool:
        """Return whether the machine or a service failed, not the training."""
        return self.status == "failed" and self.code in INFRASTRUCTURE


class RunRecord(Model):
    """Record of one run of a RunSpec on a platform."""

    schema_version: Literal[1] = 1
    record_id: Name
    platform: Name
    round_id: str = ""
    attempt: int = Field(default=0, ge=0)
    nonce: str = Field(default="", max_length=128)
    """Nonce of the record's order; empty without an order."""
    spec_sha256: Sha256
    spec: RunSpec
    experiment: Experiment | None = None
    started_at: AwareDatetime
    finished_at: AwareDatetime
    fingerprint: Fingerprint
    evidence: Evidence
    timings: dict[str, float] = Field(default={}, max_length=_MAX_TIMINGS)
    """Seconds spent: `import`, `stage`, `data_wait`, `probe`, `speed`, `learn`, `write` ..."""
    exit: Exit
    parts: tuple[DataFile, ...] = Field(default=(), max_length=MAX_PARTS)

    @property
    def seconds(self) -> float:
        """Return the duration by the worker's clock."""
        return (self.finished_at - self.started_at).total_seconds()

    @property
    def night(self) -> datetime:
        """Return the start time, which orders the history."""
        return self.started_at


def read_record(folder: Path, *, verify: bool = True) -> RunRecord:
    """Read the record in `folder`; with `verify`, check its parts' digests.

    Raises `InvalidInputError` for a partial or malformed record, and `CorruptDataError` for a part with wrong bytes.
    """
    path = folder / RECORD_NAME
    if not path.is_file():
        why = "no such folder" if not folder.is_dir() else f"contains no {RECORD_NAME}: the record is partial"
        raise InvalidInputError(why, where=str(folder), hint="name the folder of a finished training")
    record = read_model(RunRecord, path, max_bytes=MAX_RECORD_BYTES)
    if record.spec.digest != record.spec_sha256:
        raise InvalidInputError("is not the digest of the spec in it", where=str(path), key="spec_sha256")
    for part in record.parts if verify else ():
        check_part(folder, part)
    return record


def check_part(folder: Path, part: DataFile) -> None:
    """Raise `CorruptDataError` unless the part is a file with its bytes."""
    path = folder / part.key
    if path.is_symlink() or not path.is_file():
        raise CorruptDataError("is missing from the record", where=str(path))
    if path.stat().st_size != part.size or digest_file(path) != part.sha256:
        raise CorruptDataError("does not match the digest in its record", where=str(path))
