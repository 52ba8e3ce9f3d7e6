"""Deletion of rounds from the central store, safe against crashes.

Order: the start mark of the round (written if missing), then `round.json` and the files beside it, then the records of
the round, then artifacts that no remaining record names, then the mark. A record is unusable once its `record.json` is
removed. An interrupted removal leaves the mark: the next removal finds a round without a verdict there, and
continues. Series, baselines, anchors, specs and alerts are never touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from plumbline.data.stores import ObjectMissingError, read_bytes
from plumbline.night.baseline import Baseline, BaselineBook
from plumbline.night.central import CentralStore, round_key
from plumbline.night.central.central_store import artifact_key, secret_key, start_key, started_at
from plumbline.night.central.outbox import RECORDS, record_key
from plumbline.night.central.series import read_series
from plumbline.night.retention.choice import Choice, StoredRound, choose
from plumbline.schema.errors import InvalidInputError, UnavailableError
from plumbline.schema.record import MAX_RECORD_BYTES, parse_record
from plumbline.schema.suite import Suite

_AT_ONCE = 8
_OPEN = timedelta(days=1)
"""A younger round without a verdict may still be running."""
_STARTED = "started/"
_ARTIFACTS = "artifacts/"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Deletion plan: objects to remove, and objects to keep."""

    choice: Choice
    suite: str
    marks: dict[str, str]
    """Start mark of each round to remove, present or to be written."""
    records: tuple[str, ...]
    artifacts: tuple[str, ...]
    """Keys of artifacts that no remaining record names."""
    num_bytes: int
    seen: frozenset[str] = frozenset()
    """All records at the time of the plan; a later record may name an artifact too."""
    unread: tuple[str, ...] = ()
    """Unreadable records, which may name any artifact: they and all artifacts stay."""
    open_rounds: tuple[str, ...] = ()
    """Rounds of any suite that may still be running."""


@dataclass(frozen=True, slots=True)
class _Named:
    """Fields of one record that the deletion needs."""

    round_id: str
    artifacts: frozenset[str]


def plan_sweep(central: CentralStore, suite: Suite, *, now: datetime, keep_days: float) -> Sweep:
    """Return the deletion plan; raise `InvalidInputError` for a damaged baseline."""
    baselines = _baselines(central)
    marks = {key: (suite_of, name) for key, suite_of, name in _marks(central)}
    rounds, foreign = _rounds(central, suite, marks)
    entries = [
        entry
        for baseline in baselines
        for entry in (*baseline.records, *baseline.rejected, baseline.anchor)
        if entry is not None
    ]
    accepted = {entry.record_id for entry in entries}
    choice = choose(
        rounds,
        accepted_records=accepted,
        accepted_rounds={entry.round_id for entry in entries if entry.round_id},
        now=now,
        keep_days=keep_days,
    )
    gone = frozenset(choice.gone)
    staying = [*foreign, *(round_ for round_ in rounds if round_.name not in gone)]
    named = {name for round_ in staying for name in round_.records} | accepted
    kinds = (f"{RECORDS}/", _ARTIFACTS, "rounds/")
    sizes = {info.key: info.size for kind in kinds for info in central.store.list(kind)}
    records, unread = _read_records(central, central.list_records())
    going_rounds = [round_ for round_ in rounds if round_.name in gone]
    own = {name for round_ in going_rounds for name in round_.records}
    # A record names its round without the suite: two suites may have a round of one name.
    surely = gone - {round_.name for round_ in foreign}
    going = tuple(
        name for name, record in records.items() if (record.round_id in surely or name in own) and name not in named
    )
    remaining = frozenset().union(*(record.artifacts for name, record in records.items() if name not in set(going)))
    artifacts = () if unread else tuple(key for key in sizes if key.startswith(_ARTIFACTS) and key not in remaining)
    removed = [*artifacts, *(record_key(name) for name in going)]
    folders = {round_key(suite.name, name, "") for name in gone}
    removed += [key for key in sizes if f"{key.rpartition('/')[0]}/" in folders]
    mine = {name: key for key, (suite_of, name) in marks.items() if suite_of == suite.name}
    times = {round_.name: round_.started_at for round_ in rounds}
    return Sweep(
        choice=choice,
        suite=suite.name,
        marks={name: mine.get(name) or start_key(suite.name, name, times[name] or now) for name in choice.gone},
        records=going,
        artifacts=artifacts,
        num_bytes=sum(sizes.get(key, 0) for key in removed),
        seen=frozenset(records),
        unread=unread,
        open_rounds=tuple(_open_rounds(central, marks, now)),
    )


def remove(central: CentralStore, plan: Sweep) -> None:
    """Delete the plan's objects. Idempotent.

    Raises `UnavailableError` if a round may be running: it could refer to a removed artifact.
    """
    if plan.open_rounds:
        hint = "wait until no round is running"
        raise UnavailableError(f"{plan.open_rounds[0]} has no verdict yet", where=central.store.url, hint=hint)
    store = central.store
    for mark in plan.marks.values():
        central.put_text(mark, "")
    for name in plan.choice.gone:
        store.delete(round_key(plan.suite, name, "round.json"))
        _delete(central, [info.key for info in store.list(round_key(plan.suite, name, ""))])
    _delete(central, [record_key(name) for name in plan.records])
    again, unread = _read_records(central, set(central.list_records()) - plan.seen)
    named = frozenset().union(*(record.artifacts for record in again.values()))
    _delete(central, [key for key in plan.artifacts if key not in named] if not unread else [])
    _delete(central, [secret_key(plan.suite, name) for name in plan.choice.gone])
    _delete(central, plan.marks.values())


def _delete(central: CentralStore, keys: Iterable[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prune") as pool:
        list(pool.map(central.store.delete, keys))


def _baselines(central: CentralStore) -> tuple[Baseline, ...]:
    """Return every baseline, including those with only rejected records."""
    baselines, damaged = BaselineBook(central).everything()
    for why in damaged.values():
        raise InvalidInputError(
            f"{why}", hint="repair the baseline first: no round is removed while a baseline cannot be read"
        )
    return baselines


def _marks(central: CentralStore) -> Iterator[tuple[str, str, str]]:
    """Yield (key, suite, round) of every started round."""
    for info in central.store.list(_STARTED):
        parts = info.key.split("/")
        _, dash, name = parts[-1].partition("-")
        if len(parts) == 3 and dash and name:
            yield info.key, parts[1], name


def _rounds(
    central: CentralStore, suite: Suite, marks: dict[str, tuple[str, str]]
) -> tuple[list[StoredRound], list[StoredRound]]:
    """Return the suite's rounds, and other rounds that must stay."""
    times = {name: started_at(key) for key, (suite_of, name) in marks.items() if suite_of == suite.name}
    judged = _judged_times(central, suite)
    names = central.list_rounds()
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prune") as pool:
        verdicts = dict(zip(names, pool.map(lambda name: central.find_round(*name), names), strict=True))
    mine: list[StoredRound] = []
    foreign: list[StoredRound] = []
    for (of, name), verdict in verdicts.items():
        is_mine = of == suite.name and verdict is not None
        (mine if is_mine else foreign).append(StoredRound(name, times.get(name) or judged.get(name), verdict))
    mine += [StoredRound(name, when, None) for name, when in times.items() if (suite.name, name) not in verdicts]
    return mine, foreign


def _judged_times(central: CentralStore, suite: Suite) -> dict[str, datetime]:
    """Return when each round was judged, according to the stored series."""
    found: dict[str, datetime] = {}
    for platform in suite.platforms:
        series = read_series(central, suite.name, platform)
        found |= {name: datetime.fromtimestamp(night.time, UTC) for name, night in series.judged.items()}
        found |= {name: datetime.fromtimestamp(when, UTC) for name, when in zip(series.round, series.time, strict=True)}
    return found


def _open_rounds(central: CentralStore, marks: dict[str, tuple[str, str]], now: datetime) -> Iterator[str]:
    known = set(central.list_rounds())
    for key, (suite, name) in marks.items():
        when = started_at(key)
        if (suite, name) not in known and when is not None and now - when < _OPEN:
            yield name


def _read_records(central: CentralStore, names: Iterable[str]) -> tuple[dict[str, _Named], tuple[str, ...]]:
    names = list(names)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="prune") as pool:
        found = dict(zip(names, pool.map(lambda name: _read_record(central, name), names), strict=True))
    unread = tuple(name for name, record in found.items() if record is None)
    return {name: record for name, record in found.items() if record is not None}, unread


def _read_record(central: CentralStore, name: str) -> _Named | None:
    try:
        data = read_bytes(central.store, record_key(name), max_bytes=MAX_RECORD_BYTES)
        record = parse_record(data, where=name)
    except ObjectMissingError:
        return _Named("", frozenset())
    except InvalidInputError:
        return None
    return _Named(record.round_id, frozenset(artifact_key(part.sha256) for part in record.parts))
