"""The controller's judging task."""

from __future__ import annotations

from pathlib import Path

from prefect import task

from plumbline.rounds import Harvest, Round, judge_harvest
from plumbline.schema.verdict import PlatformResult

__all__ = ["judge"]


@task(name="judge", persist_result=False)
def judge(this: Round, found: Harvest, folder: Path) -> dict[str, dict[str, PlatformResult]]:
    """Hold every platform against the reference and against its own baseline, workload by workload."""
    return judge_harvest(this, found, {})
