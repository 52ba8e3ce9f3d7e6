"""What the central store has of a night beside its numbers: the record, and the round's report."""

from __future__ import annotations

from plumbline.central import CentralStore, round_key
from plumbline.central.outbox import checked_record, record_key
from plumbline.errors import InvalidInputError
from plumbline.exports.runs import NightRun
from plumbline.schema.record import MAX_RECORD_BYTES, RunRecord
from plumbline.stores import ObjectMissingError, read_bytes

_MAX_REPORT_BYTES = 64 << 20


def stored_record(central: CentralStore, run: NightRun) -> RunRecord | None:
    """Return the record of a run; `None` if it was pruned or is damaged: the series has its numbers."""
    if not run.record:
        return None
    try:
        data = read_bytes(central.store, record_key(run.record), max_bytes=MAX_RECORD_BYTES)
        return checked_record(data, run.record, central.store.url)
    except (ObjectMissingError, InvalidInputError):
        return None


def stored_report(central: CentralStore, run: NightRun) -> str:
    """Return the page of the run's round; "" if it was pruned."""
    try:
        key = round_key(run.suite, run.round, "report.html")
        return read_bytes(central.store, key, max_bytes=_MAX_REPORT_BYTES).decode()
    except ObjectMissingError:
        return ""
