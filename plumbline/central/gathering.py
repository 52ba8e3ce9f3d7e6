"""Gather: the controller collects what the platforms left in their outboxes, and tells apart what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from plumbline.central.outbox import ForeignRecordError, checked_record, receive, record_key
from plumbline.central.store import CentralStore
from plumbline.dispatch.order import TrainingOrder
from plumbline.dispatch.states import Recorded, RecordKind
from plumbline.errors import InvalidInputError, PlumblineError
from plumbline.schema.record import MAX_RECORD_BYTES, RunRecord
from plumbline.stores.base import ObjectMissingError, Store
from plumbline.stores.writing import read_bytes

__all__ = ["Gathered", "State", "find_record", "gather"]

T = TypeVar("T")

_LOOKS = 3

State = Literal["complete", "missing", "partial", "foreign", "corrupt", "unreachable"]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was found of one platform's record.

    `missing`: nothing yet, it may be late · `partial`: parts without their `record.json` · `foreign`: a record of
    another platform or id in its place · `corrupt`: malformed, or parts of other bytes · `unreachable`: the outbox.
    """

    state: State
    record_id: str
    folder: Path | None = None
    record: RunRecord | None = None
    why: str = ""


def gather(
    outboxes: Mapping[str, Store],
    expected: Mapping[str, str],
    central: CentralStore,
    into: Path,
    orders: Mapping[str, TrainingOrder] | None = None,
) -> dict[str, Gathered]:
    """Collect the expected record of each platform, in parallel, into `into` and the central store.

    A record that does not answer its platform's order is `foreign`, and is not kept. Doing it again fetches nothing
    that is here, and finds what has come since. No platform's trouble is another's.
    """
    if not expected:
        return {}
    with ThreadPoolExecutor(max_workers=min(16, len(expected)), thread_name_prefix="gather") as pool:
        jobs = {
            platform: pool.submit(
                _one, outboxes.get(platform), _Wanted(platform, record_id, (orders or {}).get(platform)), central, into
            )
            for platform, record_id in expected.items()
        }
        return {platform: job.result() for platform, job in jobs.items()}


def find_record(outbox: Store, order: TrainingOrder) -> Recorded:
    """Return what the outbox holds under the order's record id; `PlumblineError` where it cannot be asked.

    A record that cannot be read counts as complete: gathering says what is wrong with it.
    """
    key = record_key(order.record_id)
    try:
        data = read_bytes(outbox, key, max_bytes=MAX_RECORD_BYTES)
        record = checked_record(data, order.record_id, f"{outbox.url}/{key}")
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The record that is expected of one platform, and the order that it has to answer."""

    platform: str
    record_id: str
    order: TrainingOrder | None


def _one(outbox: Store | None, wanted: _Wanted, central: CentralStore, into: Path) -> Gathered:
    record_id = wanted.record_id
    if outbox is None:
        return Gathered("unreachable", record_id, why="the platform has no outbox")
    try:
        found = _looked_again(lambda: _fetch(outbox, wanted, into))
    except InvalidInputError as error:
        return Gathered("foreign" if isinstance(error, ForeignRecordError) else "corrupt", record_id, why=str(error))
    except PlumblineError as error:
        return Gathered("unreachable", record_id, why=str(error))
    folder = found.folder
    if folder is None:
        return found
    # A central store that cannot be written is no platform's fault: that error is the controller's own, and ends the
    # round. What stands in the way of one record there ends that record's part in it.
    try:
        _looked_again(lambda: central.put_record(folder))
    except InvalidInputError as error:
        return Gathered("unreachable", record_id, why=f"cannot be kept: {error}")
    return found


def _looked_again(operation: Callable[[], T]) -> T:
    """What it gives, at the latest on the third look: a byte may be wrong on its way, and no SDK tells."""
    for _ in range(_LOOKS - 1):
        try:
            return operation()
        except ForeignRecordError:
            raise
        except InvalidInputError:
            continue
    return operation()


def _fetch(outbox: Store, wanted: _Wanted, into: Path) -> Gathered:
    platform, record_id, order = wanted.platform, wanted.record_id, wanted.order
    key = record_key(record_id)
    try:
        data = read_bytes(outbox, key, max_bytes=MAX_RECORD_BYTES)
    except ObjectMissingError:
        return _absent(outbox, record_id)
    record = checked_record(data, record_id, f"{outbox.url}/{key}")
    if record.platform != platform:
        return Gathered("foreign", record_id, why=f"is a record of the platform {record.platform!r}")
    foreign = order.foreign_fields(record) if order else ()
    if foreign:
        return Gathered("foreign", record_id, why=f"does not answer this round's order: {', '.join(foreign)} differ")
    folder = receive(outbox, record, data, into / platform, lambda part: record_key(record_id, part.key))
    return Gathered("complete", record_id, folder, record)


def _absent(outbox: Store, record_id: str) -> Gathered:
    try:
        parts = sum(1 for _ in outbox.list(record_key(record_id, "")))
    except ObjectMissingError as error:
        return Gathered("unreachable", record_id, why=str(error))
    if parts:
        return Gathered("partial", record_id, why=f"{parts} parts without their record.json")
    return Gathered("missing", record_id, why="nothing is there yet")
