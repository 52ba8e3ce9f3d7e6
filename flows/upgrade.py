"""Upgrade flows: on the controller, and the gate on each platform's worker."""

from __future__ import annotations

from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.states import Completed, Failed

from plumbline.schema.errors import ConfigurationError, PlumblineError, SupersededError
from plumbline.schema.escape import escape
from plumbline.schema.suite import Suite
from plumbline.schema.versions import validate_order
from plumbline.tasks.alert import alert_without_verdict
from plumbline.tasks.events import Phases, ProgressReporter
from plumbline.tasks.machines import Machines
from plumbline.tasks.open_round import give_slot_back, name_round, run_name, take_over
from plumbline.tasks.prefect_client.flow_runs import FAILED_NAMES, MISCONFIGURED
from plumbline.tasks.prefect_client.recovery import final_state
from plumbline.tasks.upgrade import (
    alert_about_upgrade,
    judge_here,
    open_upgrade,
    publish_upgrade,
    start_round,
    train_candidate,
)
from plumbline.upgrade.campaign import UpgradeOptions
from plumbline.upgrade.orders import UpgradeOrder
from plumbline.upgrade.outcome import UpgradeOutcome, headline
from plumbline.upgrade.request import Candidate, UpgradeRequest

_PHASES = ("judging", "reporting", "alerting")


@flow(name="plumbline-upgrade", flow_run_name=run_name, persist_result=False)
def upgrade(  # noqa: PLR0917 - the form of Prefect shows them in this order
    suite: Suite,
    candidate: Candidate = Candidate(),  # noqa: B008 - frozen
    platforms: tuple[str, ...] = (),
    workload: str = "",
    round_id: str = "",
    max_trials: int = 200,
    max_seconds: float = 14_400.0,
    releases: bool = False,
    allow_unhashed: bool = False,
) -> State[None]:
    """Test the candidate on every platform, and name the responsible package.

    A candidate image is compared as a whole. Without a candidate, which is an event that names no lock, the workers'
    environments have changed already: a round is started instead.
    """
    try:
        if not candidate.is_given:
            return Completed(message=f"no candidate lock was given; started the round {start_round(suite)}")
        upgrade_id = name_round(suite, round_id)
        with ProgressReporter(get_run_logger()) as progress, alert_without_verdict(suite, upgrade_id):
            take_over(suite, upgrade_id)
            options = UpgradeOptions(
                trials=max_trials, seconds=max_seconds, releases=releases, allow_unhashed=allow_unhashed
            )
            request = UpgradeRequest(
                upgrade_id=upgrade_id, suite=suite, candidate=candidate, platforms=platforms, workload=workload,
                options=options,
            )  # fmt: skip
            outcome = _judge(request, Phases(progress, _PHASES))
    except SupersededError as error:
        raise Abort(str(error)) from error  # leave the run's state to the later start
    except PlumblineError as error:
        return final_state(error.exit_code, str(error))
    finally:
        give_slot_back()
    return final_state(outcome.exit_code, headline(outcome))


def _judge(request: UpgradeRequest, phase: Phases) -> UpgradeOutcome:
    with phase("judging"):
        opened = open_upgrade(request)
        with Machines(request.suite, request.upgrade_id) as machines:
            outcome = train_candidate(opened, machines)
    with phase("reporting"):
        outcome = publish_upgrade(outcome, request.suite)
    with phase("alerting"):
        alert_about_upgrade(request.suite, outcome)
    return outcome


@flow(name="plumbline-gate", persist_result=False, log_prints=False)
def gate(order: dict[str, Any]) -> State[None]:
    """Judge an upgrade on this platform, and send the report."""
    try:
        read = validate_order(UpgradeOrder, order)
    except ConfigurationError as error:
        return Failed(name=MISCONFIGURED, message=escape(str(error), "log"))
    report = judge_here(read)
    if report.answer is not None:
        return Completed(message=escape(f"{report.answer.verdict}: {report.answer.sentences[0]}"[:1000], "log"))
    return Failed(name=FAILED_NAMES.get(report.exit_code, "Failed"), message=escape(report.error, "log"))
