"""Decisions on tonight's records, by earlier nights and experiments. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

from plumbline.judge.history.allowed import Allowed, allowed_for, learned_margins
from plumbline.judge.history.metrics import METRICS, extended, row_of
from plumbline.judge.history.night import LineDecision, judge_lines
from plumbline.judge.history.segments import MetricHistory, lines_of
from plumbline.judge.whole import stands_alone
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.isolation import Defect, isolated
from plumbline.night.rounds.judging import Baselines
from plumbline.night.rounds.night_answers import (
    SPEED_METRICS,
    ab_evidence,
    is_ab,
    rerun_answers,
    rerun_note,
    rerun_records,
    software_states,
    with_ab_answers,
)
from plumbline.night.rounds.plan import AB, MAIN, RERUN, Assignment, Round
from plumbline.night.rounds.software import SoftwareChange, hosts_of, machine_cause, software_change, with_ab
from plumbline.records import LoadedRecord
from plumbline.report.decisions import shift_note
from plumbline.schema import limits
from plumbline.schema.digest import digest_bytes
from plumbline.schema.experiment import MAX_BLOCKS
from plumbline.schema.series import NightRow, SeriesFile
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import Cause


@dataclass(frozen=True, slots=True)
class History:
    """Series by platform, and acceptance times by platform and workload."""

    series: Mapping[str, SeriesFile] = field(default_factory=dict)
    accepted: Mapping[str, Mapping[str, Sequence[datetime]]] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlatformNight:
    """Decisions on one platform's night, with new series rows."""

    decisions: tuple[LineDecision, ...] = ()
    rows: tuple[NightRow, ...] = ()
    damage: str = ""
    """Why there is no decision: the series, or a record, cannot be judged."""
    software: Mapping[str, SoftwareChange] = field(default_factory=dict)
    """By workload."""
    signs: Mapping[str, Cause] = field(default_factory=dict)
    """Cause on the machine that the samplers of all runs name, by workload."""


Nights = Mapping[str, PlatformNight]
"""By platform."""


def limits_of(suite: Suite, platform: str = "") -> Allowed:
    """Return the decision engine's limits for a suite or one platform."""
    own = suite.platforms[platform].throughput_drop if platform else None
    gates = suite.gates if own is None else suite.gates.replace(throughput_drop=own)
    return allowed_for(
        num_platforms=len(suite.platforms),
        num_series=sum(len(suite.workloads_of(name)) for name in suite.platforms) * len(METRICS),
        gates=gates,
        dispatch=suite.dispatch,
        margins=learned_margins(gates),
    )


def decide_nights(
    round_: Round,
    gathered: GatheredRecords,
    history: History,
    baselines: Baselines | None = None,
    now: datetime | None = None,
) -> Nights:
    """Decide on every metric of every platform recorded tonight.

    Reruns confirm a loss; an A/B then distinguishes software from machine.
    """
    nights = {}
    for platform in round_.suite.platforms:
        night = isolated(platform, partial(_night, round_, gathered, history, baselines or {}, platform, now))
        nights[platform] = PlatformNight(damage=night.why) if isinstance(night, Defect) else night
    return nights


def _night(  # noqa: PLR0917 - all that is known of one platform's night
    round_: Round, gathered: GatheredRecords, history: History, baselines: Baselines, platform: str,
    now: datetime | None,
) -> PlatformNight:  # fmt: skip
    """Return one platform's new series rows, and decisions on each metric."""
    tonight = [record for one, record in gathered.records.items() if (one.platform, one.what) == (platform, MAIN)]
    # A record that lacks evidence measured something else: it never enters the series.
    rows = [row_of(record.record, now) for record in tonight if stands_alone(record)]
    new = tuple(row for row in rows if row is not None)
    if not new or platform in history.damaged:
        return PlatformNight(rows=new, damage=history.damaged.get(platform, ""))
    series = extended(history.series.get(platform, SeriesFile(suite=round_.suite.name, platform=platform)), new)
    changes: dict[str, SoftwareChange] = {}
    signs: dict[str, Cause] = {}
    for row in new:
        main = gathered.records[Assignment(platform, row.workload, MAIN)]
        baseline = baselines.get(row.workload, {}).get(platform)
        changes[row.workload] = _change(round_, gathered, platform, row, series, main, baseline)
        cause = machine_cause(baseline, [main, *rerun_records(gathered, platform, row.workload)])
        if cause is not None:
            signs[row.workload] = cause
    ids = {row.record for row in new}
    lines = [line for line in lines_of(series, METRICS, history.accepted.get(platform, {})) if line.records[-1] in ids]
    decided = _decided(lines, limits_of(round_.suite, platform), gathered, platform, changes)
    noted = tuple(_with_notes(one, gathered, platform, changes, baselines) for one in decided)
    return PlatformNight(noted, new, software=changes, signs=signs)


def _decided(
    lines: Sequence[MetricHistory],
    allowed: Allowed,
    gathered: GatheredRecords,
    platform: str,
    changes: Mapping[str, SoftwareChange],
) -> tuple[LineDecision, ...]:
    """Decide on a platform's metrics by reruns, then by an A/B test."""
    answers, states = rerun_answers(lines, gathered, platform), software_states(lines, changes)
    asked = judge_lines(lines, allowed, answers, states)
    answers = with_ab_answers(asked, gathered, platform, answers)
    return judge_lines(lines, allowed, answers, states)


def _with_notes(
    one: LineDecision,
    gathered: GatheredRecords,
    platform: str,
    changes: Mapping[str, SoftwareChange],
    baselines: Baselines,
) -> LineDecision:
    """Add notes on step phases, software, and ignored reruns."""
    workload = one.line.workload
    if not one.shifted:
        notes = (changes[workload].note, rerun_note(gathered, platform, workload))
        return replace(one, note="; ".join(note for note in notes if note))
    main, baseline = gathered.records[Assignment(platform, workload, MAIN)], baselines.get(workload, {}).get(platform)
    if baseline is None or baseline.record.fingerprint.hardware_class != main.record.fingerprint.hardware_class:
        return one
    before, after = baseline.record.evidence.speed, main.record.evidence.speed
    return one if before is None or after is None else replace(one, note=shift_note(before, after))


def _seed(*names: str) -> int:
    """Derive the seed of a night's A/B test from these names."""
    return int(digest_bytes("/".join(names).encode())[:15], 16)


def _change(  # noqa: PLR0917 - all that is known of one platform's software
    round_: Round, gathered: GatheredRecords, platform: str, row: NightRow, series: SeriesFile,
    tonight: LoadedRecord, baseline: LoadedRecord | None,
) -> SoftwareChange:  # fmt: skip
    """Compare tonight's software with the baseline's."""
    keys = {series.words[series.software[place]] for place in series.places(row.workload)[-limits.ENOUGH_NIGHTS :]}
    change = software_change(
        baseline.record.fingerprint if baseline is not None else None,
        tonight.record.fingerprint,
        round_.suite.dispatch,
        same_for_weeks=keys == {row.software},
        seed=_seed(round_.id, platform, row.workload),
        own_environment=bool(round_.suite.platforms[platform].python),
    )
    if baseline is not None:
        change = replace(change, hosts=hosts_of(baseline.record.fingerprint, tonight.record.fingerprint))
    lost = next((one.why for key, one in gathered.absent.items() if is_ab(key, platform, row.workload)), "")
    return with_ab(change, ab_evidence(gathered, platform, row.workload), lost)


def night_reruns(nights: Nights, num_reruns: int = 4) -> tuple[Assignment, ...]:
    """Return the reruns that undecided metrics need."""
    wanted = {
        (platform, decision.line.workload): None
        for platform, night in nights.items()
        for decision in night.decisions
        if decision.needs == "reruns" and decision.line.metric.name in SPEED_METRICS
    }
    names = [RERUN, *(f"{RERUN}-{number}" for number in range(2, num_reruns + 1))]
    return tuple(Assignment(platform, workload, name) for platform, workload in wanted for name in names)


def night_abs(nights: Nights, allowed: Allowed) -> tuple[Assignment, ...]:
    """Return at most one A/B test per platform, for its largest regression.

    It has as many blocks as the level of its series takes.
    """
    found = []
    for platform, night in nights.items():
        wanting = [one for one in night.decisions if one.needs == "ab" and one.decision.rerun is not None]
        worst_first = sorted(wanting, key=lambda one: -one.decision.rerun.z if one.decision.rerun else 0.0)
        for one in worst_first[:1]:
            change = night.software.get(one.line.workload)
            if change is not None and change.order is not None:
                title = "A/B: tonight's environment against the baseline's"
                tested = [other for other in wanting if other.line.workload == one.line.workload]
                num_blocks = max(allowed.ab_blocks(len(tested), other.decision.noise) for other in tested)
                order = change.order.replace(num_blocks=min(num_blocks, MAX_BLOCKS))
                found.append(Assignment(platform, one.line.workload, AB, title=title, ab=order))
    return tuple(found)
