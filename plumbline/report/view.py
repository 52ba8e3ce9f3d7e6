"""View model of the report. Pure.

All decisions are made here; the template only arranges the content.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart
from plumbline.report.differences import FingerprintDifference, described, differences
from plumbline.report.history import Points, history_chart, since
from plumbline.report.sentences import clean, note_line, top_cause
from plumbline.report.story import Headline, PlatformCard, card_of, headline
from plumbline.report.timing import Bars, round_bars
from plumbline.report.workloads import WorkloadView, workload_views
from plumbline.schema.record import Exit, RunRecord
from plumbline.schema.verdict import Cause, Finding, PlatformResult, RoundVerdict

Records = Mapping[str, LoadedRecord | Sequence[LoadedRecord]]
"""Record, or records of all workloads, of each platform."""

_MAX_ROWS = 80


@dataclass(frozen=True, slots=True)
class PlatformRow:
    """A platform's row in the table."""

    name: str
    result: PlatformResult
    cause: Cause | None
    """The first of the surest causes."""
    throughput_note: str
    machine: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DifferenceTable:
    """Table of differences, cut at a maximum length."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[FingerprintDifference, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class RecordLink:
    """One record, with the location of its parts."""

    platform: str
    record_id: str
    spec_sha256: str
    started_at: datetime
    seconds: float
    exit: Exit
    href: str


@dataclass(frozen=True)
class ReportView:
    """Content of a whole report."""

    headline: Headline
    rows: tuple[PlatformRow, ...]
    cards: tuple[PlatformCard, ...]
    workloads: tuple[WorkloadView, ...]
    history: Chart | None
    changes: tuple[DifferenceTable, ...]
    timings: tuple[Bars, ...]
    records: tuple[RecordLink, ...]
    findings: tuple[tuple[str, Finding], ...] = ()
    notes: tuple[str, ...] = ()
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
    """Return the report's content for a round.

    `earlier` has each platform's record of a night to compare with. The platform `unjudged` is shown without a verdict.
    """
    # Names come from records and stores: make them printable.
    verdict = verdict.replace(platforms={_name(name): result for name, result in verdict.platforms.items()})
    reference, unjudged = _name(reference), _name(unjudged)
    lists = {_name(name): _tuple(given) for name, given in records.items() if _name(name) in verdict.platforms}
    before = {_name(name): _tuple(given) for name, given in (baselines or {}).items()}
    points = {_name(name): line for name, line in (history or {}).items()}
    points = {name: line for name, line in points.items() if name in verdict.platforms}
    order = tuple(sorted(verdict.platforms, key=lambda name: (name != reference, name)))
    since_when = {
        name: since(points[name], verdict.platforms[name].verdict) if points.get(name) else "" for name in order
    }
    marked = frozenset(name for name, result in verdict.platforms.items() if result.verdict != "pass")
    workloads = workload_views(lists, reference, order, marked)
    exact = bool(workloads) and all(workload.exact for workload in workloads)
    return ReportView(
        headline=headline(
            _without(verdict, unjudged), [name for name in order if name != unjudged], _night(lists), exact=exact
        ),
        rows=tuple(_row(name, verdict.platforms[name], lists.get(name, ()), before.get(name, ())) for name in order),
        cards=tuple(
            card_of(name, verdict.platforms[name], since_when[name])
            for name in order
            if verdict.platforms[name].verdict != "pass"
        ),
        unjudged=unjudged,
        workloads=workloads,
        history=history_chart(points, order, marked) if points else None,
        changes=_changes(lists, before, {_name(name): record for name, record in (earlier or {}).items()}, order),
        timings=round_bars(verdict, order),
        records=tuple(
            _link(name, loaded.record, records_base, record_links or {})
            for name in order
            for loaded in lists.get(name, ())
        ),
        findings=tuple((name, finding) for name in order for finding in verdict.platforms[name].findings),
        notes=tuple(clean(note) for note in (*verdict.notes, *([verdict.proven] if verdict.proven else []))),
        order=order,
        reference=reference,
    )


def _without(verdict: RoundVerdict, platform: str) -> RoundVerdict:
    return verdict.replace(platforms={name: found for name, found in verdict.platforms.items() if name != platform})


def _name(name: str) -> str:
    return clean(name, 63)


def _tuple(record: LoadedRecord | Sequence[LoadedRecord]) -> tuple[LoadedRecord, ...]:
    return (record,) if isinstance(record, LoadedRecord) else tuple(record)


def _night(lists: Mapping[str, Sequence[LoadedRecord]]) -> str:
    begun = [record.record.started_at for loaded in lists.values() for record in loaded]
    return min(begun).strftime("%Y-%m-%d %H:%M %Z") if begun else ""


def _row(
    name: str, result: PlatformResult, records: Sequence[LoadedRecord], before: Sequence[LoadedRecord]
) -> PlatformRow:
    notes = [result.unavailable] if result.unavailable else []
    notes += [note_line(note) for note in result.notes]
    return PlatformRow(
        name=name,
        result=result,
        cause=top_cause(result),
        throughput_note=_against(result.samples_per_second, before),
        machine=described(records[0].record.fingerprint) if records else "no record",
        notes=tuple(clean(note, 240) for note in notes),
    )


def _against(rate: float | None, before: Sequence[LoadedRecord]) -> str:
    known = [baseline.record.evidence.speed.samples_per_second for baseline in before if baseline.record.evidence.speed]
    if rate is None or len(known) != 1 or not known[0]:
        return ""
    return f"{100 * (rate / known[0] - 1):+.1f} % against its baseline"


def _changes(
    lists: Mapping[str, Sequence[LoadedRecord]],
    before: Mapping[str, Sequence[LoadedRecord]],
    earlier: Mapping[str, RunRecord],
    order: Sequence[str],
) -> tuple[DifferenceTable, ...]:
    now = {name: loaded[0].record.fingerprint for name, loaded in lists.items() if loaded}
    tables = []
    if len(now) > 1:
        columns = tuple(name for name in order if name in now)
        tables.append(_cut("Between the platforms", columns, differences([now[name] for name in columns])))
    for name in order:
        if name in now and name in earlier:
            other = earlier[name]
            rows = differences([other.fingerprint, now[name]])
            night = clean(other.round_id or other.record_id, 63)
            tables.append(_cut(f"{name} since {night}", (night, "now"), rows))
        if name in now and before.get(name):
            rows = differences([before[name][0].record.fingerprint, now[name]])
            tables.append(_cut(f"{name} since its baseline", ("baseline", "now"), rows))
    return tuple(tables)


def _cut(title: str, columns: tuple[str, ...], rows: tuple[FingerprintDifference, ...]) -> DifferenceTable:
    return DifferenceTable(title, columns, rows[:_MAX_ROWS], max(0, len(rows) - _MAX_ROWS))


def _link(platform: str, record: RunRecord, base: str, links: Mapping[str, str]) -> RecordLink:
    href = links.get(record.record_id, f"{base}/{record.record_id}/record.json")
    # Not the record itself: a page names thousands, which memory does not hold.
    return RecordLink(
        platform, record.record_id, record.spec_sha256, record.started_at, record.seconds, record.exit, href
    )
