"""The controller's flow: one round of a suite, from dispatch to verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.dispatch import Limits
from plumbline.rounds import Harvest, Round, headline
from plumbline.schema.verdict import RoundVerdict
from plumbline.workfolder import work_folder
from tasks.alerting import alert, told_if_broken
from tasks.confirming import confirm_causes, confirm_speed
from tasks.dispatch import dispatch
from tasks.gathering import gather_records
from tasks.heartbeat import Heartbeat
from tasks.judging import Judged, conclude, judge
from tasks.opening import name_round, open_round, open_suite, run_name
from tasks.reporting import publish, report, show_in_ui
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
            verdict, found, judged = _play(this, folder, phase)
        with phase("telling"):
            if failures := alert(this, verdict):
                verdict = report(this, verdict.replace(notes=(*verdict.notes, *failures)), found, judged)
                publish(this, verdict)
            show_in_ui(this, verdict, found, judged, return_state=True)  # if it fails, the verdict stands all the same
        heartbeat.on_progress({"part": "done", "step": 1, "steps": 1, "words": verdict.verdict})
    message = headline(verdict)
    return Completed(message=message) if verdict.verdict == "pass" else Failed(message=message)


def _play(this: Round, folder: Path, phase: Phases) -> tuple[RoundVerdict, Harvest, Judged]:
    with phase("training"):
        results = dispatch(this, this.assignments(), Limits())
    with phase("gathering"):
        found = gather_records(this, results, folder)
    with phase("judging"):
        judged = judge(this, found, folder)
    with phase("confirming"):
        found, judged = confirm_speed(this, found, judged, folder)
        judged = confirm_causes(this, found, judged, folder)
    verdict = conclude(this, judged, phase.timings)
    with phase("reporting"):
        verdict = report(this, verdict, found, judged)
        publish(this, verdict)
    return verdict, found, judged
