"""Second looks, each through dispatch: the rerun that a drop in speed needs before it is called drift."""

from __future__ import annotations

from pathlib import Path

from plumbline.dispatch import Limits
from plumbline.rounds import Harvest, Round, reruns_needed
from tasks.dispatch import dispatch
from tasks.gathering import gather_records
from tasks.judging import Judged, judge

__all__ = ["confirm_speed"]


def confirm_speed(this: Round, found: Harvest, judged: Judged, folder: Path) -> tuple[Harvest, Judged]:
    """Measure once more what was too slow, and judge again with both measurements."""
    reruns = reruns_needed(this, judged.results)
    if not reruns:
        return found, judged
    results = dispatch(this, reruns, Limits())
    both = found.plus(gather_records(this, results, folder))
    return both, judge(this, both, folder)
