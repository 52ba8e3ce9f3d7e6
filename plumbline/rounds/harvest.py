"""What a round brought in: a record from each platform, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from plumbline.central import CentralStore, gather
from plumbline.dispatch import Result, record_id
from plumbline.errors import InvalidInputError
from plumbline.records import LoadedRecord, load_record
from plumbline.rounds.plan import MAIN, Assignment, Round
from plumbline.stores import Store

__all__ = ["Absence", "Harvest", "harvest"]


@dataclass(frozen=True, slots=True)
class Absence:
    """Why an assignment left no record that can be judged."""

    why: str
    broken: bool = False
    """There is a record, and it is corrupt or foreign: invalid, where no record at all is inconclusive."""


@dataclass(frozen=True, slots=True)
class Harvest:
    """The records by what was asked for, and the reasons for those that are missing."""

    records: dict[Assignment, LoadedRecord] = field(default_factory=dict)
    absent: dict[Assignment, Absence] = field(default_factory=dict)
    notes: dict[Assignment, tuple[str, ...]] = field(default_factory=dict)

    def plus(self, other: Harvest) -> Harvest:
        """Both together."""
        return Harvest(self.records | other.records, self.absent | other.absent, self.notes | other.notes)

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
) -> Harvest:
    """Gather the records that dispatch saw, workload by workload, all platforms at once."""
    found = Harvest(notes={one: result.notes for one, result in results.items() if result.notes})
    for one, result in results.items():
        if result.attempt is None:
            found.absent[one] = Absence(result.why)
    for lot in {(one.workload, one.what) for one in results}:
        expected = {
            one.platform: (one, record_id(this.job(one).key, result.attempt))
            for one, result in results.items()
            if (one.workload, one.what) == lot and result.attempt is not None
        }
        ids = {platform: name for platform, (_, name) in expected.items()}
        for platform, got in gather(outboxes, ids, central, into).items():
            one = expected[platform][0]
            if got.folder is None:
                found.absent[one] = Absence(got.why, broken=got.state in ("corrupt", "foreign"))
                continue
            try:
                found.records[one] = load_record(got.folder)
            except InvalidInputError as error:
                found.absent[one] = Absence(str(error), broken=True)
    return found
