"""Static site over all rounds, rewritten with each round or deletion."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from plumbline.data.stores import read_bytes
from plumbline.judge.history.metrics import METRICS
from plumbline.judge.history.segments import MetricHistory, lines_of
from plumbline.night.central import CentralStore, round_key
from plumbline.night.central.series import read_series
from plumbline.night.rounds.nights import limits_of
from plumbline.night.rounds.plan import by_time
from plumbline.night.rounds.series import accepted_times
from plumbline.report.overview import SuiteRow, index_page
from plumbline.report.site import NIGHTS, platform_name, platform_page, suite_page, with_nights
from plumbline.report.summary import LineSummary, summarise
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.series import SeriesFile
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict

INDEX = "site/index.html"
_REPORT = "report.html"
_AT_ONCE = 8


def site_key(suite: str, name: str = "index.html") -> str:
    """Return the central store key of one of a suite's pages."""
    return f"site/{suite}/{name}"


def write_site(central: CentralStore, suite: Suite) -> str:
    """Write the suite's pages and the index; return the suite page's key. Pages of former platforms are removed."""
    names = list(suite.platforms)
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="site") as pool:
        series = dict(zip(names, pool.map(lambda name: _series(central, suite.name, name), names), strict=True))
        reports = _reports(central, suite.name)
        pages = {
            site_key(suite.name): suite_page(
                suite.name, names, series, _latest(central, suite.name, series, reports), reports
            ),
            **_platform_pages(central, suite, series, reports),
        }
        pages[INDEX] = index_page(_suites(central, suite.name, series))
        list(pool.map(lambda page: central.put_text(*page), pages.items()))
    _delete(central, (info.key for info in central.store.list(site_key(suite.name, "")) if info.key not in pages))
    return site_key(suite.name)


def _platform_pages(
    central: CentralStore, suite: Suite, series: Mapping[str, SeriesFile], reports: Collection[str]
) -> dict[str, str]:
    accepted = accepted_times(central)
    pages = {}
    for name, nights in series.items():
        lines: list[tuple[MetricHistory, LineSummary]] = [
            (line, summarise(line, limits_of(suite, name), last=NIGHTS))
            for line in lines_of(nights, METRICS, accepted.get(name))
        ]
        pages[site_key(suite.name, platform_name(name))] = platform_page(suite.name, nights, lines, reports)
    return pages


def connect_reports(central: CentralStore, suite: str, rounds: Iterable[str], report_url: str) -> None:
    """Link neighbouring rounds' reports to each other and the suite's page.

    A presigned link opens one object only: where the store has no site, `plumbline store site --serve` adds the links.
    """
    if not (report_url or urlsplit(central.store.url).scheme == "file"):
        return
    order = list_reports(central, suite)
    places = [bisect_left(order, by_time(name), key=by_time) for name in rounds]
    for place in sorted({place + step for place in places for step in (-1, 0, 1)}.intersection(range(len(order)))):
        key = round_key(suite, order[place], _REPORT)
        page = read_bytes(central.store, key).decode()
        linked = with_neighbours(page, suite, order, order[place])
        if linked != page:
            central.put_text(key, linked)


def list_reports(central: CentralStore, suite: str) -> list[str]:
    """Return the rounds with an existing report, sorted by time."""
    return sorted(_reports(central, suite), key=by_time)


def with_neighbours(page: str, suite: str, order: Sequence[str], name: str) -> str:
    """Return a report page with links to neighbouring rounds in `order`."""
    place = order.index(name)
    return with_nights(page, suite, order[place - 1] if place else "", "".join(order[place + 1 : place + 2]))


def _reports(central: CentralStore, suite: str) -> set[str]:
    """Return the rounds with an existing report."""
    keys = (info.key.split("/") for info in central.store.list(f"rounds/{suite}/"))
    return {parts[2] for parts in keys if len(parts) == 4 and parts[3] == _REPORT}


def _series(central: CentralStore, suite: str, platform: str) -> SeriesFile:
    try:
        return read_series(central, suite, platform)
    except InvalidInputError:
        # A damaged series is a note of the round; the other platforms' pages do not depend on it.
        return SeriesFile(suite=suite, platform=platform)


def _latest(
    central: CentralStore, suite: str, series: Mapping[str, SeriesFile], reports: Collection[str]
) -> RoundVerdict | None:
    times = {name: judged.time for nights in series.values() for name, judged in nights.judged.items()}
    newest = sorted(times, key=lambda name: (times[name], name), reverse=True)
    return next((verdict for name in newest if name in reports and (verdict := central.find_round(suite, name))), None)


def _suites(central: CentralStore, current: str, series: Mapping[str, SeriesFile]) -> list[SuiteRow]:
    """Return each suite in the store with its newest readable round; `series` are those of the current one."""
    rounds: dict[str, list[str]] = {}
    for suite, name in central.list_rounds():
        rounds.setdefault(suite, []).append(name)
    written = {info.key for info in central.store.list("site/")} | {site_key(current)}
    rows = []
    for suite, names in rounds.items():
        newest = sorted(names, key=by_time, reverse=True)
        latest = next((verdict for name in newest if (verdict := central.find_round(suite, name))), None)
        if latest is not None:
            own = series if suite == current else {name: _series(central, suite, name) for name in latest.platforms}
            rows.append(SuiteRow(suite, latest, site_key(suite) in written, _reports(central, suite), own))
    return rows


def _delete(central: CentralStore, keys: Iterable[str]) -> None:
    for key in list(keys):
        central.store.delete(key)
