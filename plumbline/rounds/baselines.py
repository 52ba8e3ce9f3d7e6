"""The approved records that a round is held against."""

from __future__ import annotations

from pathlib import Path

from plumbline.baseline import BaselineBook
from plumbline.central import CentralStore
from plumbline.records import LoadedRecord, load_record
from plumbline.rounds.plan import Round

__all__ = ["read_baselines"]


def read_baselines(this: Round, central: CentralStore, into: Path) -> dict[str, dict[str, LoadedRecord]]:
    """The current baseline of each workload on each platform, of those that have one."""
    book = BaselineBook(central)
    found: dict[str, dict[str, LoadedRecord]] = {}
    for workload, spec in this.specs.items():
        current = book.current(spec.digest, this.suite.platforms)
        found[workload] = {
            platform: load_record(central.get_record(baseline.current, into / "baselines"))
            for platform, baseline in current.items()
            if baseline.current is not None
        }
    return found
