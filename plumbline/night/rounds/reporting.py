"""Report of a round, including earlier nights, and the report's link."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from plumbline.data.stores import presign
from plumbline.data.stores.opening import LONGEST_SECONDS
from plumbline.night.central import CentralStore, round_key
from plumbline.night.central.series import read_series
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import Baselines
from plumbline.night.rounds.plan import Round, night_of
from plumbline.records import LoadedRecord
from plumbline.report.history import points_of
from plumbline.report.html import render_page
from plumbline.report.markdown import figures_page
from plumbline.report.view import build_view
from plumbline.schema.errors import InvalidInputError, PlumblineError
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import RoundVerdict

_NIGHTS = 30
PRICED_NIGHTS = 7
"""Number of nights whose median is the cost of the next one."""
_AT_ONCE = 8
_MOST_READ = 600

_SET = "set report_url in the suite for a link that opens in a browser"


@dataclass(frozen=True, slots=True)
class ReportLink:
    """Address of a report, with a note on how long it works."""

    url: str
    note: str = ""


def link_to(central: CentralStore, key: str, report_url: str, *, now: datetime | None = None) -> ReportLink:
    """Return the best available link to a central store object.

    `report_url` is the address of a static site or proxy that serves the store; without it, a presigned link valid for
    a week; else the object's path or URL, with a note.
    """
    if report_url:
        return ReportLink(f"{report_url.rstrip('/')}/{quote(key)}")
    parts = urlsplit(central.store.url)
    if parts.scheme == "file":
        path = (Path(parts.netloc + parts.path) / key).resolve()
        return ReportLink(str(path), f"a path on the controller's disk, not a link: {_SET}")
    address = f"{central.store.url}/{key}"
    try:
        link = presign(central.store, key, LONGEST_SECONDS)
    except PlumblineError as error:
        return ReportLink(address, f"not a link ({error.what}): {_SET}")
    if link is None:
        return ReportLink(address, f"not a link: {_SET}")
    until = (now or datetime.now(UTC)) + timedelta(seconds=LONGEST_SECONDS)
    note = f"the link opens until {until:%Y-%m-%d %H:%M} UTC, or until the credentials that signed it expire"
    return ReportLink(link, note)


def report_key(verdict: RoundVerdict) -> str:
    """Return the central store key of a round's report."""
    return round_key(verdict.suite, verdict.round, "report.html")


def write_report(
    round_: Round, verdict: RoundVerdict, gathered: GatheredRecords, baselines: Baselines, central: CentralStore
) -> tuple[RoundVerdict, str]:
    """Write the report; return the verdict with link, and Markdown charts."""
    link = link_to(central, report_key(verdict), round_.suite.report_url)
    verdict = verdict.replace(report=link.url, report_note=link.note)
    nights = [*reversed(last_rounds(central, verdict.suite, _NIGHTS, without=verdict.round)), verdict]
    view = build_view(
        verdict,
        {workload: gathered.of(workload) for workload in round_.specs},
        reference=round_.suite.reference,
        baselines=baselines,
        history=points_of([(night_of(night.round), night) for night in nights]),
        record_links=record_links(central, gathered.records.values(), round_.suite.report_url),
        earlier=earlier_records(central, round_.suite.name, round_.suite.platforms, round_.id),
    )
    keep_report(central, verdict, render_page(view))
    return verdict, figures_page(view)


def record_links(central: CentralStore, records: Iterable[LoadedRecord], report_url: str) -> dict[str, str]:
    """Return the link of each record's JSON file by record id.

    A folder needs no links: relative paths work wherever it is served or opened.
    """
    if not report_url and urlsplit(central.store.url).scheme == "file":
        return {}
    ids = [record.folder.name for record in records]
    return {name: link_to(central, f"records/{name}/record.json", report_url).url for name in ids}


def earlier_records(
    central: CentralStore, suite: str, platforms: Iterable[str], round_id: str, since: str = ""
) -> dict[str, RunRecord]:
    """Return each platform's first record in the round `since` (default: previous)."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="earlier") as pool:
        found = pool.map(lambda name: (name, _earlier_record(central, suite, name, round_id, since)), platforms)
        return {name: record for name, record in found if record is not None}


def _earlier_record(central: CentralStore, suite: str, platform: str, round_id: str, since: str) -> RunRecord | None:
    """Return a platform's earlier record, or `None` if no longer stored."""
    try:
        series = read_series(central, suite, platform)
    except InvalidInputError:
        return None
    names = list(dict.fromkeys(series.round))
    before = names[: names.index(round_id)] if round_id in names else names
    wanted = since or "".join(before[-1:])
    return central.find_record(series.record[series.round.index(wanted)]) if wanted in names else None


def keep_report(central: CentralStore, verdict: RoundVerdict, page: str) -> None:
    """Store the page under the round's report key."""
    central.put_text(report_key(verdict), page)


def last_rounds(central: CentralStore, suite: str, count: int, *, without: str = "") -> list[RoundVerdict]:
    """Return the suite's last `count` readable rounds, newest first."""
    names = [name for name in reversed(central.list_rounds(suite)) if name[1] != without]
    same: list[RoundVerdict] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="history") as pool:
        for first in range(0, min(len(names), _MOST_READ), count):
            rounds = pool.map(lambda name: central.find_round(*name), names[first : first + count])
            same += [earlier for earlier in rounds if earlier is not None]
            if len(same) >= count:
                break
    return same[:count]
