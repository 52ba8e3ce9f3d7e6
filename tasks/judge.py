"""The controller's judging task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from prefect import task
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.central import CentralStore
from plumbline.rounds import Round
from plumbline.rounds.baselines import read_baselines
from plumbline.rounds.canary import apply_canary, prove_round, proven_note
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.judging import Baselines, judge_harvest
from plumbline.rounds.nights import History, NightDecisions, apply_nights, decide_nights
from plumbline.rounds.outcome import join, sum_up
from plumbline.rounds.series import count_unjudged, read_history
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from plumbline.stores import open_store

__all__ = ["Judged", "conclude", "judge"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Results by workload and platform, and the baselines that they were held against."""

    results: dict[str, dict[str, PlatformResult]]
    baselines: Baselines
    nights: NightDecisions
    """What the history of each platform makes of this night."""
    history: History
    proven: str = ""
    """When the judge was last proven on known faults."""


@task(name="judge", persist_result=False, retries=2, retry_delay_seconds=5)
def judge(round_: Round, found: GatheredRecords, folder: Path) -> Judged:
    """Hold every platform against the reference and against its own baseline, workload by workload."""
    central = CentralStore(open_store(round_.suite.store))
    baselines, unreadable = read_baselines(round_, central, folder)
    history = read_history(round_, central)
    nights = decide_nights(round_, found, history)
    harvest = judge_harvest(round_, found, baselines, unreadable)
    results = apply_nights(harvest, nights, round_.suite.gates.accuracy_margin)
    proofs = prove_round(round_, found)
    return Judged(apply_canary(results, proofs), baselines, nights, history, proven_note(round_, proofs))


def conclude(round_: Round, judged: Judged, seconds: Mapping[str, float]) -> RoundVerdict:
    """The round's verdict from its platforms' results; `seconds` of each phase."""
    platforms = {name: join({work: of[name] for work, of in judged.results.items()}) for name in round_.suite.platforms}
    timings = {**seconds, "total": sum(seconds.values())}
    verdict = sum_up(round_, platforms, flow_run=url_for("flow-run", flow_run.id) or "", timings=timings)
    if judged.proven:
        verdict = verdict.replace(proven=judged.proven)
    return count_unjudged(round_, verdict, judged.history.series, judged.baselines, datetime.now(UTC))
