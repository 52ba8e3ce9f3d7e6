"""The approved records that a round is held against."""

from __future__ import annotations

from pathlib import Path

from plumbline.baseline import BaselineBook
from plumbline.central import CentralStore
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.records import LoadedRecord, load_record
from plumbline.rounds.plan import Round
from plumbline.schema.spec import RunSpec

__all__ = ["read_baselines"]

_MORE_LOOKS = 2

Unreadable = dict[str, dict[str, str]]


def read_baselines(
    this: Round, central: CentralStore, into: Path
) -> tuple[dict[str, dict[str, LoadedRecord]], Unreadable]:
    """The current baseline of each workload on each platform that has one; and of those that are damaged, why.

    One that has gone bad in the store takes no other platform's verdict with it.
    """
    found: dict[str, dict[str, LoadedRecord]] = {workload: {} for workload in this.specs}
    unreadable: Unreadable = {workload: {} for workload in this.specs}
    for workload, spec in this.specs.items():
        for platform in this.suite.platforms:
            try:
                record = _current_again(central, spec, platform, into)
            except InvalidInputError as error:
                unreadable[workload][platform] = str(error)
                continue
            if record is not None:
                found[workload][platform] = record
    return found, unreadable


def _current_again(central: CentralStore, spec: RunSpec, platform: str, into: Path) -> LoadedRecord | None:
    """Bytes that came wrong may come right: they are asked for again before they are called damaged."""
    for _ in range(_MORE_LOOKS):
        try:
            return _current(central, spec, platform, into)
        except CorruptDataError:
            continue
    return _current(central, spec, platform, into)


def _current(central: CentralStore, spec: RunSpec, platform: str, into: Path) -> LoadedRecord | None:
    baseline = BaselineBook(central).read(spec.digest, platform)
    if baseline is None or baseline.current is None:
        return None
    return load_record(central.get_record(baseline.current, into / "baselines"))
