"""Judgement of a round's records."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.data.stores import open_store
from plumbline.local.process import MARK
from plumbline.night.central import CentralStore
from plumbline.night.rounds import Round
from plumbline.night.rounds.baselines import name_changed_tasks, read_baselines
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import Baselines, apply_canary, judge_harvest, prove_round, proven_note
from plumbline.night.rounds.night_cost import with_usage
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import History, Nights, decide_nights
from plumbline.night.rounds.outcome import join, sum_up
from plumbline.night.rounds.series import count_unjudged, read_history
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from plumbline.tasks.round_task import round_task


@dataclass(frozen=True, slots=True)
class Judged:
    """Judgements by workload and platform, with the baselines used."""

    results: dict[str, dict[str, PlatformResult]]
    baselines: Baselines
    nights: Nights
    """Decisions on this night by each platform's history."""
    history: History
    proven: str = ""
    """Note on the judge's last canary."""


@round_task("judge", retries=2)
def judge_records(round_: Round, gathered: GatheredRecords, folder: Path) -> Judged:
    """Judge every platform against the reference and its own baseline."""
    central = CentralStore(open_store(round_.suite.store))
    baselines, unreadable = read_baselines(round_, central, folder)
    history = read_history(round_, central)
    nights = decide_nights(round_, gathered, history, baselines, datetime.now(UTC))
    margin = round_.suite.gates.accuracy_margin
    harvest = judge_harvest(round_, gathered, baselines, unreadable, past_nights(nights, margin))
    results = apply_nights(harvest, nights, margin)
    results = name_changed_tasks(round_, central, gathered, results, folder)
    proofs = prove_round(round_, gathered)
    return Judged(apply_canary(results, proofs), baselines, nights, history, proven_note(round_, proofs))


def conclude(
    round_: Round, judged: Judged, gathered: GatheredRecords, seconds: Mapping[str, float], on: Mapping[str, float]
) -> RoundVerdict:
    """Combine judgements into the round's verdict.

    `seconds` has each phase's duration, `on` the seconds for which each platform's machines were on.
    """
    platforms = {
        name: join({workload: judged.results[workload][name] for workload in round_.specs_of(name)})
        for name in round_.suite.platforms
    }
    timings = {**seconds, "total": sum(seconds.values())}
    # The server of a local stack ends with its command: a link to it would lead nowhere.
    url = "" if MARK in os.environ else url_for("flow-run", flow_run.id) or ""
    verdict = sum_up(round_, platforms, flow_run=url, timings=timings)
    if judged.proven:
        verdict = verdict.replace(proven=judged.proven)
    verdict = with_usage(verdict, gathered, on)
    return count_unjudged(round_, verdict, judged.history.series, judged.baselines, datetime.now(UTC))
