"""Opening of a round: name, suite, specs, start marker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.runtime import deployment, flow_run

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.central.central_store import start_key
from plumbline.night.rounds import Round, check_round_id, round_of_run
from plumbline.night.rounds.documents import Controller, check_claim, claim_round, round_secret, round_specs
from plumbline.night.rounds.night_cost import check_cost, night_costs
from plumbline.night.rounds.recovery import MAX_CRASHES
from plumbline.night.rounds.reporting import PRICED_NIGHTS, last_rounds
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.suite import Suite, parse_suite
from plumbline.schema.suite_file import with_tuples
from plumbline.schema.variables import variable
from plumbline.tasks.prefect_client.api import server_time
from plumbline.tasks.prefect_client.flow_runs import count_crashes, release_deleted_slot
from plumbline.tasks.round_task import round_task

_PARAMETERS = "the flow run's parameters"


def run_name() -> str:
    """Return the flow run's name: suite, and round or night."""
    given: dict[str, Any] = flow_run.parameters or {}
    suite = given.get("suite")
    name = suite.get("name") if isinstance(suite, dict) else getattr(suite, "name", None)
    night = format(flow_run.scheduled_start_time, "%Y-%m-%d %H:%M")
    return f"{name or deployment.name or 'suite'} {given.get('round_id') or night}"


def name_round(suite: Suite, round_id: str) -> str:
    """Return the given round name, or derive one that restarts keep."""
    if round_id:
        return check_round_id(round_id, where=_PARAMETERS, key="round_id")
    return round_of_run(suite.name, str(flow_run.id), flow_run.scheduled_start_time)


def check_suite(suite: Suite) -> Suite:
    """Validate the suite in a flow's parameters as strictly as a file."""
    content = suite.model_dump(mode="json", exclude_defaults=True)
    return parse_suite(with_tuples(content), where=f"{_PARAMETERS}: suite")


def take_over(suite: Suite, round_id: str) -> None:
    """Claim the round for this controller start. Raise `UnavailableError` if too many starts before it crashed.

    The claim comes first: an error after it is this start's to report.
    """
    controller = _this_controller()
    claim_round(CentralStore(open_store(suite.store)), suite.name, round_id, controller)
    crashes = count_crashes(UUID(str(flow_run.id)))
    if crashes >= MAX_CRASHES:
        raise UnavailableError(f"the controller crashed {crashes} times", hint="see the log of its worker")


def _this_controller() -> Controller:
    return Controller(flow_run=str(flow_run.id), start=flow_run.run_count or 0)


def give_slot_back() -> None:
    """Release this run's concurrency slot if its deployment was deleted."""
    if flow_run.id is not None:
        release_deleted_slot(UUID(str(flow_run.id)))


def refuse_superseded(suite: Suite, round_id: str) -> None:
    """Raise `SupersededError` if a later controller start continues the round."""
    check_claim(CentralStore(open_store(suite.store)), suite.name, round_id, _this_controller())


@round_task("open round")
def open_round(suite: Suite, round_id: str) -> Round:
    """Read the round's specs, and write the start marker."""
    central = CentralStore(open_store(suite.store))
    round_ = Round(round_id, suite, round_specs(central, suite, round_id), round_secret(central, suite.name, round_id))
    central.put_text(start_key(suite.name, round_id, server_time()), "")
    lock = variable("PLUMBLINE_LOCK")
    get_run_logger().info("round %s of %s, lock %s", round_id, suite.name, lock or "not named (PLUMBLINE_LOCK)")
    if suite.dispatch.max_cost is not None:
        check_cost(suite, night_costs(suite, last_rounds(central, suite.name, PRICED_NIGHTS)), suite.name)
    if missing := suite.workloads.keys() - round_.specs.keys():
        raise ConfigurationError(f"no spec for {', '.join(sorted(missing))}", where=suite.name)
    return round_
