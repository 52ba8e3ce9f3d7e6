"""The controller's flow: one round of a suite, from dispatch to verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State

from plumbline.dispatch import Limits
from plumbline.workfolder import work_folder
from tasks.alerting import told_if_broken
from tasks.dispatch import dispatch
from tasks.heartbeat import Heartbeat
from tasks.opening import name_round, open_round, open_suite, run_name
from tasks.tagging import untagged
from tasks.taking_turns import take_turn
from tasks.telling import Phases
from tasks.watching import mark_start

__all__ = ["regression"]

_PHASES = ("training", "gathering", "judging", "confirming", "reporting", "telling")


@flow(name="regression", flow_run_name=run_name, persist_result=False, validate_parameters=False)
def regression(
    suite: dict[str, Any] | None = None,
    specs: dict[str, Any] | None = None,
    round_id: str = "",
    suite_file: str = "",
    state: str = ".plumbline",
) -> State[None]:
    """Train on every platform, gather, judge, tell. The verdict is the state: COMPLETED only for a pass."""
    name, chosen = name_round(round_id), open_suite(suite, suite_file)
    with untagged(), Heartbeat(get_run_logger()) as heartbeat, work_folder(Path(state), name) as folder:
        phase = Phases(heartbeat.on_progress, _PHASES)
        with told_if_broken(chosen, name):
            this = open_round(chosen, name, specs)
            mark_start(this)
            take_turn(this)
            with phase("training"):
                results = dispatch(this, this.assignments(), Limits())
            # Not before: numpy and the judge take a sixth of a second to load, and every training would wait for them.
            from flows.concluding import conclude_round, tell_round

            concluded = conclude_round(this, results, folder, phase)
        ended = tell_round(this, concluded, phase)
        heartbeat.on_progress({"part": "done", "step": 1, "steps": 1, "words": concluded.verdict.verdict})
    return ended
