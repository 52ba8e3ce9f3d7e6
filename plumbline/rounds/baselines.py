"""Baselines of a round's platforms."""

from __future__ import annotations

from pathlib import Path

from plumbline.baseline import BaselineBook
from plumbline.central import CentralStore
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord, load_record
from plumbline.rounds.plan import Round
from plumbline.schema.spec import RunSpec

__all__ = ["read_baselines"]

_MORE_LOOKS = 2

Unreadable = dict[str, dict[str, str]]


def read_baselines(
    round_: Round, central: CentralStore, into: Path
) -> tuple[dict[str, dict[str, LoadedRecord]], Unreadable]:
    """Return the current baselines by workload and platform, and the reasons of damaged ones.

    A damaged baseline affects no other platform.
    """
    baselines: dict[str, dict[str, LoadedRecord]] = {workload: {} for workload in round_.specs}
    unreadable: Unreadable = {workload: {} for workload in round_.specs}
    for workload, spec in round_.specs.items():
        for platform in round_.suite.platforms:
            try:
                record = _current_again(central, spec, platform, into)
            except InvalidInputError as error:
                unreadable[workload][platform] = str(error)
                continue
            if record is not None:
                baselines[workload][platform] = record
    return baselines, unreadable


def _current_again(central: CentralStore, spec: RunSpec, platform: str, into: Path) -> LoadedRecord | None:
    """Return the current baseline's record; retry damaged bytes."""
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
    record = whole(load_record(central.get_record(baseline.current, into / "baselines")))
    record.read_parts()
    return record
