"""What a round brought in: a record from each platform, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plumbline.central import CentralStore, gather
from plumbline.dispatch import Result, TrainingOrder
from plumbline.errors import InvalidInputError
from plumbline.records import LoadedRecord, load_record
from plumbline.rounds.plan import MAIN, Assignment, Round
from plumbline.schema.expected import machine_mismatches
from plumbline.schema.record import RunRecord
from plumbline.stores import Store

__all__ = ["Absence", "GatheredRecords", "harvest", "refusal"]


@dataclass(frozen=True, slots=True)
class Absence:
    """Why an assignment left no record that can be judged."""

    why: str
    broken: bool = False
    """There is a record, and it is corrupt or foreign: invalid, where no record at all is inconclusive."""
    check: str = "record.complete"


@dataclass(frozen=True, slots=True)
class GatheredRecords:
    """The records by what was asked for, and the reasons for those that are missing."""

    records: dict[Assignment, LoadedRecord] = field(default_factory=dict)
    absent: dict[Assignment, Absence] = field(default_factory=dict)
    notes: dict[Assignment, tuple[str, ...]] = field(default_factory=dict)

    def plus(self, other: GatheredRecords) -> GatheredRecords:
        """Both together."""
        return GatheredRecords(self.records | other.records, self.absent | other.absent, self.notes | other.notes)

    def of(self, workload: str, what: str = MAIN) -> dict[str, LoadedRecord]:
        """The records of one workload, by platform."""
        return {
            one.platform: record for one, record in self.records.items() if (one.workload, one.what) == (workload, what)
        }


def harvest(
    this: Round,
    results: Mapping[Assignment, Result],
    outboxes: Mapping[str, Store],
    central: CentralStore,
    into: Path,
) -> GatheredRecords:
    """Gather the records that dispatch saw, workload by workload, all platforms at once."""
    found = GatheredRecords(notes={one: result.notes for one, result in results.items() if result.notes})
    for one, result in results.items():
        if result.attempt is None:
            found.absent[one] = Absence(result.why)
    for lot in {(one.workload, one.what) for one in results}:
        expected = {
            one.platform: (one, result.attempt)
            for one, result in results.items()
            if (one.workload, one.what) == lot and result.attempt is not None
        }
        orders = {platform: this.order(one, attempt) for platform, (one, attempt) in expected.items()}
        ids = {platform: order.record_id for platform, order in orders.items()}
        for platform, got in gather(outboxes, ids, central, into, orders).items():
            one = expected[platform][0]
            if got.folder is None:
                found.absent[one] = Absence(got.why, broken=got.state in ("corrupt", "foreign"))
                continue
            try:
                record = load_record(got.folder)
            except InvalidInputError as error:
                found.absent[one] = Absence(str(error), broken=True)
                continue
            refused = refusal(orders[platform], record.record, results[one].why)
            if refused is None:
                found.records[one] = record
            else:
                found.absent[one] = refused
    return found


def refusal(order: TrainingOrder, record: RunRecord, why: str = "") -> Absence | None:
    """Return why `record` cannot be judged, though it is whole; `None` for one that can.

    A record of an infrastructure failure counts as no record. A record of another machine is invalid.
    """
    foreign = order.foreign_fields(record)
    if foreign:
        return Absence(f"does not answer this round's order: {', '.join(foreign)} differ", broken=True)
    if record.exit.is_infrastructure:
        message = f"{record.exit.code}: {record.exit.message or 'no reason given'}"
        return Absence(message if not why or why in message or record.exit.message in why else f"{why}: {message}")
    wrong = machine_mismatches(order.expected, record.fingerprint)
    if wrong:
        return Absence("; ".join(map(str, wrong)), broken=True, check=f"platform.{wrong[0].key}")
    return None
