"""The controller's judging task."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from prefect import task

from plumbline.central import CentralStore
from plumbline.rounds import Baselines, Harvest, Round, judge_harvest, read_baselines
from plumbline.schema.verdict import PlatformResult
from plumbline.stores import open_store

__all__ = ["Judged", "judge"]


@dataclass(frozen=True, slots=True)
class Judged:
    """Results by workload and platform, and the baselines that they were held against."""

    results: dict[str, dict[str, PlatformResult]]
    baselines: Baselines


@task(name="judge", persist_result=False, retries=2, retry_delay_seconds=5)
def judge(this: Round, found: Harvest, folder: Path) -> Judged:
    """Hold every platform against the reference and against its own baseline, workload by workload."""
    baselines = read_baselines(this, CentralStore(open_store(this.suite.store)), folder)
    return Judged(judge_harvest(this, found, baselines), baselines)
