"""The controller's judging task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.central import CentralStore
from plumbline.rounds import Round
from plumbline.rounds.baselines import read_baselines
from plumbline.rounds.harvest import Harvest
from plumbline.rounds.judging import Baselines, judge_harvest
from plumbline.rounds.outcome import join, sum_up
from plumbline.schema.verdict import PlatformResult, RoundVerdict
from plumbline.stores import open_store

__all__ = ["Judged", "conclude", "judge"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Results by workload and platform, and the baselines that they were held against."""

    results: dict[str, dict[str, PlatformResult]]
    baselines: Baselines


@task(name="judge", persist_result=False, retries=2, retry_delay_seconds=5)
def judge(this: Round, found: Harvest, folder: Path) -> Judged:
    """Hold every platform against the reference and against its own baseline, workload by workload."""
    baselines, unreadable = read_baselines(this, CentralStore(open_store(this.suite.store)), folder)
    return Judged(judge_harvest(this, found, baselines, unreadable), baselines)


def conclude(this: Round, judged: Judged, seconds: Mapping[str, float]) -> RoundVerdict:
    """The round's verdict from its platforms' results; `seconds` of each phase."""
    platforms = {name: join({work: of[name] for work, of in judged.results.items()}) for name in this.suite.platforms}
    timings = {**seconds, "total": sum(seconds.values())}
    return sum_up(this, platforms, flow_run=url_for("flow-run", flow_run.id) or "", timings=timings)
