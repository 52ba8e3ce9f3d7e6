"""What the controller begins with: the suite, the recipes and the name of the round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.runtime import deployment, flow_run
from pydantic import ValidationError

from plumbline.central import CentralStore
from plumbline.errors import ConfigurationError
from plumbline.rounds import Round, new_round_id
from plumbline.rounds.recipes import read_recipes
from plumbline.schema.base import first_problem
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import Suite, parse_suite, read_suite
from plumbline.schema.suite_file import with_tuples
from plumbline.stores import open_store
from plumbline.workfolder import check_round_id

__all__ = ["name_round", "open_round", "open_suite", "run_name"]

_WHERE = "the flow run's parameters"


def run_name() -> str:
    """What Prefect's UI calls the run: suite and night."""
    given = flow_run.parameters or {}
    suite = (given.get("suite") or {}).get("name") or deployment.name or Path(given.get("suite_file") or "suite").stem
    return f"{suite} {given.get('round_id') or format(flow_run.scheduled_start_time, '%Y-%m-%d %H:%M')}"


def name_round(round_id: str) -> str:
    """The round's name: as given, else after the flow run, so that the same run started again is the same round."""
    if round_id:
        return check_round_id(round_id, where=_WHERE, key="round_id")
    return new_round_id(flow_run.scheduled_start_time, str(flow_run.id).replace("-", ""))


def open_suite(suite: dict[str, Any] | None, suite_file: str) -> Suite:
    """The suite, as given or from its file: what somebody typed into Prefect's page is read as strictly."""
    if suite is None and not suite_file:
        raise ConfigurationError("give suite_file, or suite", where=_WHERE)
    if suite is None:
        return read_suite(Path(suite_file))
    return parse_suite(with_tuples(suite), where=f"{_WHERE}: suite")


def open_round(suite: Suite, round_id: str, specs: dict[str, Any] | None) -> Round:
    """The round to run, with its recipes as given or from the central store."""
    if specs is not None:
        recipes = {workload: _recipe(workload, spec) for workload, spec in specs.items()}
    else:
        recipes = read_recipes(CentralStore(open_store(suite.store)), suite)
    return Round(round_id, suite, recipes)


def _recipe(workload: str, content: dict[str, Any]) -> RunSpec:
    try:
        return RunSpec.model_validate(content)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where=f"{_WHERE}: specs", key=f"{workload}.{key}") from error
