"""Controller's flow: one round of a suite, from dispatch to verdict."""

from __future__ import annotations

from pathlib import Path

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort

from plumbline.data.staging.scratch import scratch_folder
from plumbline.night.rounds.outcome import headline
from plumbline.schema.errors import PlumblineError, SupersededError
from plumbline.schema.suite import Suite
from plumbline.schema.verdict import RoundVerdict
from plumbline.tasks.alert import alert_about_verdict, alert_without_verdict
from plumbline.tasks.confirm import confirm_causes, confirm_software, confirm_throughput
from plumbline.tasks.dispatch import dispatch_trainings, gather_records
from plumbline.tasks.events import Phases, ProgressReporter
from plumbline.tasks.judge import conclude, judge_records
from plumbline.tasks.machines import Machines
from plumbline.tasks.open_round import check_suite, give_slot_back, name_round, open_round, run_name, take_over
from plumbline.tasks.prefect_client.recovery import final_state
from plumbline.tasks.report import (
    add_notes,
    emit_verdict,
    keep_timings,
    log_verdict,
    publish,
    report_round,
    show_in_ui,
    write_pages,
)

_PHASES = ("opening", "training", "gathering", "judging", "confirming", "reporting", "alerting")


@flow(name="plumbline-regression", flow_run_name=run_name, persist_result=False)
def regression(suite: Suite, round_id: str = "") -> State[None]:
    """Run one round; the final state's name is the verdict."""
    try:
        with ProgressReporter(get_run_logger()) as progress, scratch_folder() as folder:
            verdict = _run_round(suite, round_id, Phases(progress, _PHASES), folder)
            progress.show(100.0, "done", f"done: {verdict.verdict}")
    except SupersededError as error:
        raise Abort(str(error)) from error  # leave the run's state to the later start
    except PlumblineError as error:
        return final_state(error.exit_code, str(error))
    finally:
        give_slot_back()
    log_verdict(verdict)
    return final_state(verdict.exit_code, headline(verdict))


def _run_round(suite: Suite, round_id: str, phase: Phases, folder: Path) -> RoundVerdict:
    name = name_round(suite, round_id)
    with alert_without_verdict(suite, name):
        with phase("opening"):
            take_over(suite, name)
            round_ = open_round(check_suite(suite), name)
        machines = Machines(suite, name)
        with machines, phase("training"):
            results = dispatch_trainings(round_, round_.assignments(), machines)
        with phase("gathering"):
            found = gather_records(round_, results, folder)
        with phase("judging"):
            judged = judge_records(round_, found, folder)
        with phase("confirming"):
            found, judged = confirm_throughput(round_, found, judged, folder, machines)
            found, judged = confirm_software(round_, found, judged, folder, machines)
            tried, judged = confirm_causes(round_, found, judged, folder, machines)
        verdict = conclude(round_, judged, tried, phase.timings, machines.seconds_on())
        with phase("reporting"):
            verdict, plots = report_round(round_, verdict, found, judged)
            publish(round_, verdict, judged)
    with phase("alerting"):
        emit_verdict(verdict)  # before the alerts: an error of these must not prevent a team's automations
        if failures := alert_about_verdict(round_, verdict):
            verdict = add_notes(round_, verdict, failures, found, judged)
        # A failure here does not change the verdict.
        write_pages(round_, return_state=True)
        show_in_ui(round_, verdict, plots, return_state=True)
    keep_timings(round_, verdict, phase.timings, return_state=True)
    return verdict
