"""Series of a round's platforms: read before judging, extended afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

from plumbline.judge.history.night import call_entry
from plumbline.night.baseline import Baseline, BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.central.series import extend_series, read_series
from plumbline.night.rounds.judging import Baselines
from plumbline.night.rounds.nights import History, Nights
from plumbline.night.rounds.plan import Round
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.record import night_time
from plumbline.schema.series import JudgedRound, SeriesFile
from plumbline.schema.suite_file import is_time_zone
from plumbline.schema.verdict import RoundVerdict


def read_history(round_: Round, central: CentralStore) -> History:
    """Return each platform's series and acceptance times, with damaged series by name."""
    series: dict[str, SeriesFile] = {}
    damaged: dict[str, str] = {}
    accepted: dict[str, dict[str, list[datetime]]] = {}
    book = BaselineBook(central)
    for platform in round_.suite.platforms:
        try:
            series[platform] = read_series(central, round_.suite.name, platform)
        except InvalidInputError as error:
            damaged[platform] = str(error)
        accepted[platform] = {}
        for workload, spec in round_.specs_of(platform).items():
            with suppress(InvalidInputError):  # a damaged baseline is a finding of the round
                baseline = book.read(spec.digest, platform)
                accepted[platform][workload] = _accepted(baseline) if baseline is not None else []
    return History(series, accepted, damaged)


def accepted_times(central: CentralStore) -> dict[str, dict[str, list[datetime]]]:
    """Return the nights with accepted records, by platform and workload."""
    found: dict[str, dict[str, list[datetime]]] = {}
    for baseline in BaselineBook(central).list()[0]:
        found.setdefault(baseline.platform, {}).setdefault(baseline.workload, []).extend(_accepted(baseline))
    return found


def _accepted(baseline: Baseline) -> list[datetime]:
    """Return the nights whose records were accepted as baselines."""
    records = (baseline.anchor or baseline.records[0], *baseline.records)
    anchor, *times = [night_time(record.round_id, record.started_at) for record in records]
    return [anchor, *(time for time in times if time > anchor)]


def count_unjudged(
    round_: Round, verdict: RoundVerdict, history: Mapping[str, SeriesFile], baselines: Baselines, now: datetime
) -> RoundVerdict:
    """Add the number of unjudged nights to platforms at the limit."""
    limit = round_.suite.gates.unjudged_nights
    platforms = {}
    for name, result in verdict.platforms.items():
        tonight = _judged(round_, verdict, name, baselines, now)
        series = history.get(name, SeriesFile(suite=round_.suite.name, platform=name))
        count = _unjudged_nights(round_, series, tonight)
        platforms[name] = result.replace(unjudged_nights=count if count >= limit else 0)
    return verdict.replace(platforms=platforms)


def _unjudged_nights(round_: Round, series: SeriesFile, tonight: JudgedRound) -> int:
    """Count the consecutive days without any judged round.

    Days without a round do not count. Tonight is one, and counts once, however many rounds it has.
    """
    name = round_.suite.schedule.timezone if round_.suite.schedule else "UTC"
    zone = ZoneInfo(name) if is_time_zone(name) else UTC
    earlier = {name: judged for name, judged in series.judged.items() if name != round_.id}
    days: set[date] = set()
    for round_id, judged in [(round_.id, tonight), *reversed(earlier.items())]:
        if judged.verdict != "inconclusive" and judged.has_baseline:
            break
        days.add(night_time(round_id, datetime.fromtimestamp(judged.time, UTC)).astimezone(zone).date())
    return len(days)


def _judged(round_: Round, verdict: RoundVerdict, platform: str, baselines: Baselines, now: datetime) -> JudgedRound:
    result = verdict.platforms[platform]
    return JudgedRound(
        time=now.astimezone(UTC).timestamp(),
        verdict=result.verdict,
        causes=tuple(cause.code for cause in result.causes),
        has_baseline=all(platform in baselines.get(workload, {}) for workload in round_.specs_of(platform)),
    )


def write_nights(
    round_: Round,
    verdict: RoundVerdict,
    nights: Nights,
    baselines: Baselines,
    *,
    central: CentralStore,
    now: datetime,
) -> None:
    """Append tonight to each undamaged series. Idempotent."""
    for platform in verdict.platforms:
        night = nights[platform]
        if night.damage:
            continue
        judged = {verdict.round: _judged(round_, verdict, platform, baselines, now)}
        calls = [entry for decision in night.decisions if (entry := call_entry(decision)) is not None]
        extend_series(central, round_.suite.name, platform, night.rows, calls=calls, judged=judged)
