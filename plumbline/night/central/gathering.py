"""Collection of platforms' records from their outboxes, with a state each."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from plumbline.data.staging.part import disk_errors
from plumbline.data.stores.protocol import ObjectMissingError, Store
from plumbline.night.central.central_store import CentralStore
from plumbline.night.central.outbox import ForeignRecordError, read_untrusted, receive, record_key
from plumbline.night.dispatch.states import Recorded, RecordKind, TrainingOrder
from plumbline.records import LoadedRecord, limit_memory
from plumbline.schema.errors import DiskFullError, InvalidInputError, PlumblineError
from plumbline.schema.record import RunRecord

T = TypeVar("T")

_LOOKS = 3
_MAX_PLATFORM_BYTES = 16 << 30
"""Maximum bytes of all records of one platform in one round, on the controller's disk."""

State = Literal["complete", "missing", "partial", "foreign", "corrupt", "unreachable"]


@dataclass(frozen=True, slots=True)
class Gathered:
    """Result of collecting one platform's record.

    `missing`: no file yet, the record may be late · `partial`: parts without their `record.json` · `foreign`: a record
    of a different platform or id · `corrupt`: malformed, or parts with wrong bytes · `unreachable`: the outbox cannot
    be read.
    """

    state: State
    loaded: LoadedRecord | None = None
    why: str = ""


def gather(
    outboxes: Mapping[str, Store], orders: Mapping[str, TrainingOrder], central: CentralStore, into: Path
) -> dict[str, Gathered]:
    """Collect all platforms' records in parallel, into `into` and the central store.

    A record that does not match its platform's order is `foreign`, and is not kept. A repeated call fetches only new
    records. A failure of one platform does not affect others, and no platform takes more than its share of the disk.
    """
    if not orders:
        return {}
    share = _disk_share(into, len(outboxes))
    with ThreadPoolExecutor(max_workers=min(16, len(orders)), thread_name_prefix="gather") as pool:
        jobs = {
            platform: pool.submit(_one, outboxes[platform], order, share, central, into)
            for platform, order in orders.items()
        }
        return {platform: job.result() for platform, job in jobs.items()}


def find_record(outbox: Store, order: TrainingOrder) -> Recorded:
    """Return the kind of record in the outbox for this order.

    Raises `PlumblineError` if the outbox cannot be read. An unreadable record counts as complete: gathering reports
    what is wrong.
    """
    try:
        record, _ = read_untrusted(outbox, order.record_id)
    except ObjectMissingError:
        return Recorded(RecordKind.ABSENT)
    except ForeignRecordError as error:
        return Recorded(RecordKind.FOREIGN, str(error))
    except InvalidInputError as error:
        return Recorded(RecordKind.COMPLETE, str(error))
    if order.foreign_fields(record):
        return Recorded(RecordKind.FOREIGN)
    kind = RecordKind.INFRASTRUCTURE if record.exit.is_infrastructure else RecordKind.COMPLETE
    return Recorded(kind, record.exit.message or record.exit.code)


def _one(outbox: Store, order: TrainingOrder, share_bytes: int, central: CentralStore, into: Path) -> Gathered:
    try:
        gathered = _looked_again(lambda: _fetch(outbox, order, share_bytes, into / order.platform))
    except InvalidInputError as error:
        return Gathered("foreign" if isinstance(error, ForeignRecordError) else "corrupt", why=str(error))
    except PlumblineError as error:
        return Gathered("unreachable", why=str(error))
    loaded = gathered.loaded
    if loaded is None:
        return gathered
    # A failure to write the central store is not a platform's fault: that error is the controller's own, and ends the
    # round. A conflict with a single record ends only that record's part in the round.
    try:
        _looked_again(lambda: central.put_record(loaded))
    except InvalidInputError as error:
        return Gathered("unreachable", why=f"cannot be kept: {error}")
    return gathered


def _looked_again(operation: Callable[[], T]) -> T:
    """Run `operation` up to three times, as downloads may be damaged."""
    for _ in range(_LOOKS - 1):
        try:
            return operation()
        except ForeignRecordError:
            raise
        except InvalidInputError:
            continue
    return operation()


def _fetch(outbox: Store, order: TrainingOrder, share_bytes: int, into: Path) -> Gathered:
    try:
        record, data = read_untrusted(outbox, order.record_id)
    except ObjectMissingError:
        return _absent(outbox, order.record_id)
    if foreign := order.foreign_fields(record):
        return Gathered("foreign", why=f"does not match this round's order: {', '.join(foreign)} differ")
    _check_share(record, into, share_bytes)
    loaded = receive(outbox, record, data, into, lambda part: record_key(order.record_id, part.key))
    return Gathered("complete", limit_memory(loaded))


def _disk_share(into: Path, num_platforms: int) -> int:
    """Return one platform's share of the available disk space, in bytes."""
    with disk_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        available = shutil.disk_usage(into).free + _bytes_in(into)
    return min(_MAX_PLATFORM_BYTES, available // (num_platforms + 1))


def _check_share(record: RunRecord, folder: Path, share_bytes: int) -> None:
    """Raise `DiskFullError` if a platform's records exceed its disk share. Nothing is downloaded then."""
    if (folder / record.record_id).is_dir():
        return
    size = sum(part.size for part in record.parts)
    used = _bytes_in(folder)
    if used + size > share_bytes:
        text = f"{used + size} bytes of records in one round, more than the platform's share of {share_bytes}"
        raise DiskFullError(text, where=str(folder), hint="free some space on the controller")


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _absent(outbox: Store, record_id: str) -> Gathered:
    try:
        parts = sum(1 for _ in outbox.list(record_key(record_id, "")))
    except ObjectMissingError as error:
        return Gathered("unreachable", why=str(error))
    if parts:
        return Gathered("partial", why=f"{parts} parts without their record.json")
    return Gathered("missing", why="no record yet")
