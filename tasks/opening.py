"""What the controller begins with: the suite, the recipes and the name of the round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect.runtime import flow_run
from pydantic import ValidationError

from plumbline.central import CentralStore
from plumbline.errors import ConfigurationError
from plumbline.rounds import Round, new_round_id
from plumbline.rounds.recipes import read_recipes
from plumbline.schema.base import first_problem
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import Suite, read_suite
from plumbline.stores import open_store
from plumbline.workfolder import check_round_id

__all__ = ["open_round"]


def open_round(suite: dict[str, Any] | None, specs: dict[str, Any] | None, round_id: str, suite_file: str) -> Round:
    """The round to run. Named after the flow run, so that the same run started again is the same round."""
    if round_id:
        check_round_id(round_id, where="the flow run's parameters", key="round_id")
    chosen = _suite(suite) if suite is not None else read_suite(Path(suite_file))
    name = round_id or new_round_id(flow_run.scheduled_start_time, str(flow_run.id).replace("-", ""))
    if specs is not None:
        recipes = {workload: RunSpec.model_validate(spec) for workload, spec in specs.items()}
    else:
        recipes = read_recipes(CentralStore(open_store(chosen.store)), chosen)
    return Round(name, chosen, recipes)


def _suite(content: dict[str, Any]) -> Suite:
    try:
        return Suite.model_validate(content)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise ConfigurationError(reason, where="the flow run's suite", key=key) from error
