"""View model of the report: all content, ready to render. Pure.

All decisions are made here; the template only arranges the content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart
from plumbline.report.differences import (
    FingerprintDifference,
    NightChange,
    described,
    differences,
    night_change,
)
from plumbline.report.history import Points, history_chart, since
from plumbline.report.sentences import clean, note_line, top_cause, when_of
from plumbline.report.story import Headline, PlatformCard, card_of, headline
from plumbline.report.timing import Bars, round_bars
from plumbline.report.workloads import WorkloadView, workload_view
from plumbline.schema.escape import printable
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.record import Exit, RunRecord
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict, severity

Records = Mapping[str, Mapping[str, LoadedRecord]]
"""By workload, then by platform. The view reads them once, in this order: memory may not hold all of them."""

_MAX_ROWS = 80
_MOST_LINES, _MOST_CHARS = 40, 300
_MOST_PLATFORMS = 6
"""Maximum number of platforms in one table; those of more that passed are folded."""


@dataclass(frozen=True, slots=True)
class PlatformRow:
    """Table row of one platform."""

    name: str
    result: PlatformResult
    cause: Cause | None
    """The first of the surest causes."""
    throughput_note: str
    machine: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DifferenceTable:
    """Table of differences, limited in length."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[FingerprintDifference, ...]
    left_out: int = 0
    anchor: str = ""


@dataclass(frozen=True, slots=True)
class RecordLink:
    """Record with a link to its `record.json` and, of a command, the last lines of its output."""

    platform: str
    record_id: str
    spec_sha256: str
    started_at: datetime
    seconds: float
    exit: Exit
    href: str
    output: str = ""


@dataclass(frozen=True)
class ReportView:
    """Content of a complete report."""

    headline: Headline
    rows: tuple[PlatformRow, ...]
    """The worst first."""
    cards: tuple[PlatformCard, ...]
    workloads: tuple[WorkloadView, ...]
    history: Chart | None
    since: tuple[NightChange, ...]
    """Of each platform, against the night before or the one that was asked for."""
    changes: tuple[DifferenceTable, ...]
    timings: tuple[Bars, ...]
    records: tuple[RecordLink, ...]
    findings: tuple[tuple[str, Finding], ...] = ()
    notes: tuple[str, ...] = ()
    passed: tuple[PlatformRow, ...] = ()
    """Those that passed, if the platforms are too many for one table."""
    order: tuple[str, ...] = ()
    reference: str = ""
    unjudged: str = ""
    """Platform that is shown without a verdict."""


def build_view(
    verdict: RoundVerdict,
    records: Records,
    *,
    reference: str = "",
    baselines: Records | None = None,
    history: Points | None = None,
    records_base: str = "../../../records",
    record_links: Mapping[str, str] | None = None,
    earlier: Mapping[str, RunRecord] | None = None,
    unjudged: str = "",
) -> ReportView:
    """Build the report's content for a round.

    `earlier` has each platform's record of a night to compare with. The platform `unjudged` is shown without a verdict.
    """
    # Names come from records and stores: make them printable.
    verdict = verdict.replace(platforms={_name(name): result for name, result in verdict.platforms.items()})
    reference, unjudged = _name(reference), _name(unjudged)
    lots = {workload: _named(lot, verdict) for workload, lot in records.items()}
    before = {workload: _named(lot, verdict) for workload, lot in (baselines or {}).items()}
    points = {_name(name): line for name, line in (history or {}).items()}
    points = {name: line for name, line in points.items() if name in verdict.platforms}
    order = tuple(sorted(verdict.platforms, key=lambda name: (name != reference, name)))
    since_when = {
        name: since(points[name], verdict.platforms[name].verdict) if points.get(name) else "" for name in order
    }
    marked = frozenset(name for name, result in verdict.platforms.items() if result.verdict != "pass")
    workloads, links, now = [], [], dict[str, Fingerprint]()
    for workload, lot in lots.items():
        ordered = {name: lot[name] for name in order if name in lot}
        if ordered:
            workloads.append(workload_view(workload, ordered, reference, order, marked))
        for name, loaded in ordered.items():
            links.append(_link(name, loaded, records_base, record_links or {}))
            now.setdefault(name, loaded.record.fingerprint)
    past = {_name(name): record for name, record in (earlier or {}).items()}
    changes = _changes(now, before, past, order)
    size = {table.anchor: len(table.rows) + table.left_out for table in changes}
    rows = {name: _row(name, verdict.platforms[name], now.get(name), _of(before, name)) for name in order}
    worst_first, folded = list(order), set[str]()
    if len(order) > _MOST_PLATFORMS:
        worst_first.sort(key=lambda name: -severity(verdict.platforms[name].verdict))
        folded = set(order) - marked
    exact = bool(workloads) and all(workload.exact for workload in workloads)
    return ReportView(
        headline=headline(
            _without(verdict, unjudged),
            [name for name in order if name != unjudged],
            _night(verdict.round, [link for link in links if link.platform != unjudged]),
            exact=exact,
        ),
        rows=tuple(rows[name] for name in worst_first if name not in folded),
        passed=tuple(rows[name] for name in order if name in folded),
        cards=tuple(
            card_of(name, verdict.platforms[name], since_when[name])
            for name in worst_first
            if verdict.platforms[name].verdict != "pass"
        ),
        unjudged=unjudged,
        workloads=tuple(workloads),
        history=history_chart(points, order, marked) if points else None,
        since=tuple(
            night_change(name, verdict.platforms[name], past[name], size.get(f"since-{name}", 0))
            for name in worst_first
            if name in past and name in now
        ),
        changes=changes,
        timings=round_bars(verdict, worst_first),
        records=tuple(sorted(links, key=lambda link: order.index(link.platform))),
        findings=tuple((name, finding) for name in order for finding in verdict.platforms[name].findings),
        notes=tuple(clean(note) for note in (*verdict.notes, *([verdict.proven] if verdict.proven else []))),
        order=order,
        reference=reference,
    )


def _without(verdict: RoundVerdict, platform: str) -> RoundVerdict:
    return verdict.replace(platforms={name: found for name, found in verdict.platforms.items() if name != platform})


def _name(name: str) -> str:
    return clean(name, 63)


def _named(lot: Mapping[str, LoadedRecord], verdict: RoundVerdict) -> dict[str, LoadedRecord]:
    """Return a workload's records by printable platform names."""
    return {_name(name): loaded for name, loaded in lot.items() if _name(name) in verdict.platforms}


def _of(records: Records, name: str) -> list[LoadedRecord]:
    """Return one platform's records."""
    return [lot[name] for lot in records.values() if name in lot]


def _night(round_id: str, links: Sequence[RecordLink]) -> str:
    """Return the time of the round, the same on every page."""
    return f"{when_of(round_id, min(link.started_at for link in links).timestamp())} UTC" if links else ""


def _row(
    name: str, result: PlatformResult, fingerprint: Fingerprint | None, before: Sequence[LoadedRecord]
) -> PlatformRow:
    notes = [result.unavailable] if result.unavailable else []
    notes += [note_line(note) for note in result.notes]
    return PlatformRow(
        name=name,
        result=result,
        cause=top_cause(result),
        throughput_note=_against(result.samples_per_second, before),
        machine=described(fingerprint) if fingerprint else "no record",
        notes=tuple(clean(note, 240) for note in notes),
    )


def _against(rate: float | None, before: Sequence[LoadedRecord]) -> str:
    speed = before[0].record.evidence.speed if rate is not None and len(before) == 1 else None
    if rate is None or speed is None or not speed.samples_per_second:
        return ""
    return f"{100 * (rate / speed.samples_per_second - 1):+.1f} % against its baseline"


def _changes(
    now: Mapping[str, Fingerprint],
    before: Records,
    earlier: Mapping[str, RunRecord],
    order: Sequence[str],
) -> tuple[DifferenceTable, ...]:
    tables = []
    if len(now) > 1:
        columns = tuple(name for name in order if name in now)
        tables.append(_cut("Between the platforms", columns, differences([now[name] for name in columns])))
    for name in order:
        if name in now and name in earlier:
            other = earlier[name]
            rows = differences([other.fingerprint, now[name]])
            night = when_of(other.round_id or other.record_id)
            tables.append(_cut(f"{name} since {night}", (night, "now"), rows, f"since-{name}"))
        if name in now and (baselines := _of(before, name)):
            rows = differences([baselines[0].record.fingerprint, now[name]])
            tables.append(_cut(f"{name} since its baseline", ("baseline", "now"), rows))
    return tuple(tables)


def _cut(
    title: str, columns: tuple[str, ...], rows: tuple[FingerprintDifference, ...], anchor: str = ""
) -> DifferenceTable:
    return DifferenceTable(title, columns, rows[:_MAX_ROWS], max(0, len(rows) - _MAX_ROWS), anchor)


def _link(platform: str, loaded: LoadedRecord, base: str, links: Mapping[str, str]) -> RecordLink:
    record = loaded.record
    href = links.get(record.record_id, f"{base}/{record.record_id}/record.json")
    output = "\n".join(printable(line[:_MOST_CHARS]) for line in loaded.output.splitlines()[-_MOST_LINES:])
    # Not the record itself: a page names thousands, which memory does not hold.
    return RecordLink(
        platform, record.record_id, record.spec_sha256, record.started_at, record.seconds, record.exit, href, output
    )
