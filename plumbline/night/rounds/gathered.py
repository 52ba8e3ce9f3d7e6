"""Records of a round, with reasons for missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plumbline.data.stores import Store
from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import compare
from plumbline.judge.history.metrics import row_of
from plumbline.judge.whole import whole
from plumbline.night.central import CentralStore, gather
from plumbline.night.dispatch import Result, TrainingOrder
from plumbline.night.rounds.isolation import Defect, isolated
from plumbline.night.rounds.plan import MAIN, Assignment, Round
from plumbline.records import LoadedRecord, limit_memory
from plumbline.schema.fingerprint import machine_mismatches
from plumbline.schema.record import CLOCK_TOLERANCE, RunRecord, named_time


@dataclass(frozen=True, slots=True)
class Absence:
    """Reason why an assigned training has no valid record."""

    why: str
    broken: bool = False
    """Whether a corrupt or foreign record exists, which is invalid; a missing record is inconclusive."""
    check: str = "record.complete"
    is_misconfigured: bool = False
    """Whether the platform is not set up to train."""


@dataclass(frozen=True, slots=True)
class GatheredRecords:
    """Records by assigned training, with reasons for missing ones."""

    records: dict[Assignment, LoadedRecord] = field(default_factory=dict)
    absent: dict[Assignment, Absence] = field(default_factory=dict)
    notes: dict[Assignment, tuple[str, ...]] = field(default_factory=dict)
    table: Comparisons = field(default_factory=Comparisons, compare=False, repr=False)
    """The comparisons of these records with each other and with their baselines."""

    def plus(self, other: GatheredRecords) -> GatheredRecords:
        """Return the union with `other` gathered records."""
        return GatheredRecords(
            self.records | other.records, self.absent | other.absent, self.notes | other.notes, self.table
        )

    def of(self, workload: str, what: str = MAIN) -> dict[str, LoadedRecord]:
        """Return one workload's records by platform."""
        return {
            assignment.platform: record
            for assignment, record in self.records.items()
            if (assignment.workload, assignment.what) == (workload, what)
        }


def harvest(
    round_: Round,
    results: Mapping[Assignment, Result],
    outboxes: Mapping[str, Store],
    central: CentralStore,
    into: Path,
    *,
    now: datetime | None = None,
) -> GatheredRecords:
    """Collect all dispatched records by workload, platforms in parallel.

    With `now`, the controller's time, a record whose times are not within the round is invalid.
    """
    gathered = GatheredRecords(
        notes={assignment: result.notes for assignment, result in results.items() if result.notes}
    )
    for assignment, result in results.items():
        if result.attempt is None:
            gathered.absent[assignment] = Absence(result.why, is_misconfigured=result.is_misconfigured)
    for lot in {(assignment.workload, assignment.what) for assignment in results}:
        expected = {
            assignment.platform: (assignment, result.attempt)
            for assignment, result in results.items()
            if (assignment.workload, assignment.what) == lot and result.attempt is not None
        }
        orders = {platform: round_.order(assignment, attempt) for platform, (assignment, attempt) in expected.items()}
        for platform, got in gather(outboxes, orders, central, into).items():
            assignment = expected[platform][0]
            if got.loaded is None:
                gathered.absent[assignment] = Absence(got.why, broken=got.state in ("corrupt", "foreign"))
                continue
            found = isolated(
                platform,
                partial(_judgeable, got.loaded, orders[platform], results[assignment].why, gathered.table, now),
            )
            if isinstance(found, LoadedRecord):
                gathered.records[assignment] = found
            else:
                gathered.absent[assignment] = Absence(found.why, broken=True) if isinstance(found, Defect) else found
    return gathered


def _judgeable(
    gathered: LoadedRecord, order: TrainingOrder, why: str, table: Comparisons, now: datetime | None
) -> LoadedRecord | Absence:
    """Return a gathered record after reading all parts and judging it alone.

    Otherwise the first to read a malformed part would be the judge of all platforms.
    """
    loaded = limit_memory(whole(gathered))
    refused = refusal(order, loaded.record, why, now)
    if refused is not None:
        return refused
    if loaded.record.exit.status == "completed":
        loaded.read_parts()  # a failed training may end within a step: its error is what counts
    compare(loaded, loaded, table=table)
    row_of(loaded.record)
    return loaded


def refusal(order: TrainingOrder, record: RunRecord, why: str = "", now: datetime | None = None) -> Absence | None:
    """Return why a complete `record` cannot be judged, or `None`.

    A record of an infrastructure failure counts as missing. A record of a different machine is invalid,
    and so is one whose times are not between the round's start and `now`.
    """
    if record.exit.is_infrastructure:
        message = f"{record.exit.code}: {record.exit.message or 'no reason given'}"
        return Absence(message if not why or why in message or record.exit.message in why else f"{why}: {message}")
    wrong = machine_mismatches(order.expected, record.fingerprint)
    if wrong:
        return Absence("; ".join(map(str, wrong)), broken=True, check=f"platform.{wrong[0].key}")
    return _untimely(order, record, now) if now is not None else None


def _untimely(order: TrainingOrder, record: RunRecord, now: datetime) -> Absence | None:
    """Return why a record's timestamps do not fit the round, or `None`."""
    begin = min(named_time(order.round_id) or record.started_at, now)
    if begin - CLOCK_TOLERANCE <= record.started_at <= record.finished_at <= now + CLOCK_TOLERANCE:
        return None
    times = " to ".join(f"{time.astimezone(UTC):%Y-%m-%d %H:%M}" for time in (record.started_at, record.finished_at))
    what = f"was trained from {times} UTC by its worker's clock, not in this round: start a time service there"
    return Absence(what, broken=True, check="record.time")
