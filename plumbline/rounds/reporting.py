"""The report of a round, and the nights before it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from plumbline.central import CentralStore
from plumbline.errors import InvalidInputError
from plumbline.records import LoadedRecord
from plumbline.report.figures import figures_page
from plumbline.report.history import History, points_of
from plumbline.report.html import render_page
from plumbline.report.view import ReportView, build_view
from plumbline.rounds.harvest import Harvest
from plumbline.rounds.judging import Baselines
from plumbline.rounds.plan import Round, night_of
from plumbline.schema.verdict import RoundVerdict

__all__ = ["draw_plots", "keep_report", "report_address", "write_report"]

_NIGHTS = 30
_AT_ONCE = 8
_MOST_READ = 600


def report_address(central: CentralStore, round_id: str) -> str:
    """Where the report of a round lies: a path that opens in a browser, or the object's URL."""
    key = f"rounds/{round_id}/report.html"
    parts = urlsplit(central.store.url)
    if parts.scheme == "file":
        return str((Path(parts.netloc + parts.path) / key).resolve())
    return f"{central.store.url}/{key}"


def write_report(
    this: Round, verdict: RoundVerdict, found: Harvest, baselines: Baselines, central: CentralStore
) -> RoundVerdict:
    """Write the page beside the round; the verdict, which now says where."""
    verdict = verdict.replace(report=report_address(central, this.id))
    keep_report(central, this.id, render_page(_view(this, verdict, found, baselines, central)))
    return verdict


def draw_plots(this: Round, verdict: RoundVerdict, found: Harvest, baselines: Baselines, central: CentralStore) -> str:
    """The report's charts as one Markdown page."""
    return figures_page(_view(this, verdict, found, baselines, central))


def _view(
    this: Round, verdict: RoundVerdict, found: Harvest, baselines: Baselines, central: CentralStore
) -> ReportView:
    records = {
        name: [record for one, record in found.records.items() if one.platform == name and one.what == "main"]
        for name in this.suite.platforms
    }
    before: dict[str, list[LoadedRecord]] = {}
    for of_workload in baselines.values():
        for name, record in of_workload.items():
            before.setdefault(name, []).append(record)
    return build_view(
        verdict,
        {name: lot for name, lot in records.items() if lot},
        reference=this.suite.reference,
        baselines=before,
        history=_history(central, verdict),
    )


def keep_report(central: CentralStore, round_id: str, page: str) -> None:
    """Put the page where `report_address` says."""
    central.put_text(f"rounds/{round_id}/report.html", page)


def _history(central: CentralStore, verdict: RoundVerdict) -> History:
    """The suite's last nights; other suites may keep theirs in the same store."""
    names = [name for name in reversed(central.list_rounds()) if name != verdict.round]
    same: list[RoundVerdict] = []
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="history") as pool:
        for first in range(0, min(len(names), _MOST_READ), _NIGHTS):
            rounds = pool.map(lambda name: _read(central, name), names[first : first + _NIGHTS])
            same += [one for one in rounds if one is not None and one.suite == verdict.suite]
            if len(same) >= _NIGHTS:
                break
    return History(points=points_of(_dated([*reversed(same[:_NIGHTS]), verdict])))


def _read(central: CentralStore, name: str) -> RoundVerdict | None:
    try:
        return central.get_round(name)
    except InvalidInputError:
        # An old round that cannot be read any more must not cost tonight's report.
        return None


def _dated(rounds: Sequence[RoundVerdict]) -> list[tuple[str, RoundVerdict]]:
    return [(night_of(one.round), one) for one in rounds]
