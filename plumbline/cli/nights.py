"""Reader of a suite's nights, from series files or stored rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from plumbline.cli.options import say
from plumbline.data.stores import open_store
from plumbline.judge.history.metrics import BY_NAME, METRICS
from plumbline.judge.history.segments import MetricHistory, lines_of
from plumbline.night.central import CentralStore
from plumbline.night.central.series import read_series
from plumbline.night.rounds import check_round_id
from plumbline.night.rounds.plan import by_time
from plumbline.schema.base import Model
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.series import SeriesFile
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict


class Night(Model):
    """Result of one platform in one round."""

    round: str
    platform: str
    verdict: str
    causes: tuple[str, ...] = ()
    accuracy: float | None = None
    samples_per_second: float | None = None
    records: tuple[str, ...] = ()


def open_central(url: str) -> CentralStore:
    """Open the central store read-only. Raise if its relative folder does not exist.

    An empty answer would pass for the suite's: a relative URL means a different folder in each working directory.
    """
    scheme, _, folder = url.partition("://")
    path = Path(folder).expanduser()
    if scheme == "file" and not path.is_absolute() and not path.is_dir():
        hint = "no round was stored there; a relative store is one of the folder in which the rounds are started"
        raise ConfigurationError("no such folder", where=str(path.absolute()), key="store", hint=hint)
    return CentralStore(open_store(url))


def read_round(central: CentralStore, suite: str | None, wanted: str, where: str) -> RoundVerdict:
    """Return the round with this id, of the suite if given. Raise `ConfigurationError` if absent or ambiguous."""
    check_round_id(wanted, where=where)
    suites = [of for of, name in central.list_rounds(suite) if name == wanted]
    if len(suites) > 1:
        text = f"the round {wanted!r} exists in {len(suites)} suites"
        raise ConfigurationError(text, where=central.store.url, hint="name the suite with --suite")
    if not suites:
        hint = "`plumbline history SUITE` lists the rounds"
        raise ConfigurationError(f"the round {wanted!r} does not exist", where=central.store.url, hint=hint)
    return central.get_round(suites[0], wanted)


def latest_round(central: CentralStore, suite: str | None) -> RoundVerdict | None:
    """Return the newest round of one suite or of all, or `None`.

    An unreadable one raises `InvalidInputError`: an older verdict would pass for it.
    """
    names = central.list_rounds(suite)
    newest = max(names, key=lambda name: by_time(name[1]), default=None)
    try:
        return central.get_round(*newest) if newest is not None else None
    except InvalidInputError as error:
        hint = "the newest round is damaged; `plumbline history SUITE` lists the others, which can be named"
        raise InvalidInputError(error.what, where=error.where, key=error.key, hint=hint) from error


def read_rounds(central: CentralStore, suite: str, last: int) -> list[RoundVerdict]:
    """Return the suite's last rounds, oldest first; report and skip unreadable ones."""
    rounds: list[RoundVerdict] = []
    for name in sorted(central.list_rounds(suite), key=lambda name: by_time(name[1]), reverse=True):
        if len(rounds) == last:
            break
        try:
            rounds.append(central.get_round(*name))
        except InvalidInputError as error:
            say(f"plumbline: the round {name[1]} is skipped: {error}", to_stderr=True)
    return rounds[::-1]


def read_all_series(central: CentralStore, suite: Suite, platforms: Sequence[str]) -> dict[str, SeriesFile]:
    """Return each platform's series file; raise `InvalidInputError` if damaged."""
    return {name: read_series(central, suite.name, name) for name in platforms}


def read_nights(
    central: CentralStore, suite: Suite, series: Mapping[str, SeriesFile], last: int
) -> dict[str, tuple[Night, ...]]:
    """Return each platform's last nights, from rounds if series have no verdicts."""
    if any(history.judged for history in series.values()):
        return {name: _nights(one, last) for name, one in series.items()}
    rounds = read_rounds(central, suite.name, last)
    return {name: tuple(_night(verdict, name) for verdict in rounds if name in verdict.platforms) for name in series}


def _nights(series: SeriesFile, last: int) -> tuple[Night, ...]:
    rows: dict[str, list[int]] = {}
    for place, name in enumerate(series.round):
        rows.setdefault(name, []).append(place)
    return tuple(
        Night(
            round=name,
            platform=series.platform,
            verdict=judged.verdict,
            causes=judged.causes,
            accuracy=_first(series, "accuracy", rows.get(name, ())),
            samples_per_second=_first(series, "throughput", rows.get(name, ())),
            records=tuple(series.record[place] for place in rows.get(name, ())),
        )
        for name, judged in list(series.judged.items())[-last:]
    )


def _first(series: SeriesFile, metric: str, places: Sequence[int]) -> float | None:
    column = series.metrics.get(metric, ())
    return next((column[place] for place in places if column and column[place] is not None), None)


def _night(verdict: RoundVerdict, platform: str) -> Night:
    result = verdict.platforms[platform]
    return Night(
        round=verdict.round,
        platform=platform,
        verdict=result.verdict,
        causes=tuple(cause.code for cause in result.causes),
        accuracy=result.accuracy,
        samples_per_second=result.samples_per_second,
        records=result.records,
    )


def read_lines(
    series: SeriesFile, nights: Sequence[Night], accepted: Mapping[str, Sequence[datetime]]
) -> tuple[MetricHistory, ...]:
    """Return a platform's metric histories, from its series or rounds."""
    if len(series):
        return lines_of(series, METRICS, accepted)
    lines = []
    for name, attribute in (("throughput", "samples_per_second"), ("accuracy", "accuracy")):
        kept = [night for night in nights if getattr(night, attribute) is not None]
        times, rounds = tuple(map(float, range(len(kept)))), tuple(night.round for night in kept)
        values = tuple(getattr(night, attribute) for night in kept)
        if kept:
            lines.append(MetricHistory(series.platform, "", BY_NAME[name], times, rounds, rounds, values, ()))
    return tuple(lines)
