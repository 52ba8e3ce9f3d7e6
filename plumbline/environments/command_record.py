"""Record that a command left: checked against its order, and completed by what the worker knows."""

from __future__ import annotations

import shutil
from datetime import datetime, timezone
from pathlib import Path

from plumbline.data.staging.part import disk_errors
from plumbline.environments.command_order import CommandOrder, Place
from plumbline.records.part_sizes import PART_FILES, check_parts
from plumbline.schema.base import read_model
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import canonical_json, digest_file
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.experiment import EXPERIMENT_NAME, Experiment
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import MAX_MESSAGE, RECORD_NAME, Exit, RunRecord, read_record


def answered(order: CommandOrder, place: Place, began: datetime) -> RunRecord:
    """Return the record as this order's; raise `InvalidInputError` if there is none, or a different one."""
    if not (place.record / RECORD_NAME).is_file():
        why = place.problem or "the command wrote no record"
        hint = "" if place.problem else "its script calls plumbline.capture around the training loop"
        raise InvalidInputError(why, where=order.spec.workload, hint=hint)
    record = read_record(place.record)
    wanted = read_model(Experiment, order.experiment / EXPERIMENT_NAME) if order.experiment is not None else None
    if record.nonce != order.nonce or record.spec.digest != order.spec.digest or record.experiment != wanted:
        hint = "a command writes a new record by plumbline.capture, into the folder that PLUMBLINE_RECORD names"
        raise InvalidInputError("the record answers a different order", where=order.spec.workload, hint=hint)
    check_parts(record, order.spec.workload)
    captured = record.evidence.captured
    if not isinstance(record.spec, CapturedSpec) or captured is None:
        raise InvalidInputError("the record is not one of plumbline.capture", where=order.spec.workload)
    ending = record.exit
    if place.problem:
        ending = Exit(status="failed", code="command", message=place.problem[:MAX_MESSAGE])
    return record.replace(
        record_id=order.record_id,
        platform=order.platform,
        round_id=order.round_id,
        attempt=order.attempt,
        spec=order.spec.replace(batch_size=record.spec.batch_size, precision=record.spec.precision),
        started_at=began,
        finished_at=datetime.now(timezone.utc),
        exit=ending,
        evidence=record.evidence.replace(captured=captured.replace(identity=captured.identity | place.suspects)),
    )


def write_answer(record: RunRecord, source: Path, out: Path, said: str) -> None:
    """Copy the record's parts, add the output, and write `record.json` last."""
    with disk_errors(out):
        for part in record.parts:
            shutil.copyfile(source / part.key, out / part.key)
        output = out / PART_FILES["output"]
        output.write_text(said, encoding="utf-8", errors="replace")
        own = DataFile(key=output.name, size=output.stat().st_size, sha256=digest_file(output))
        whole = record.replace(parts=(*record.parts, own))
        unfinished = out / f"{RECORD_NAME}.part"
        unfinished.write_bytes(canonical_json(whole.to_json()))
        unfinished.replace(out / RECORD_NAME)
