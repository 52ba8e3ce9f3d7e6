"""Validation of a round's parameters from an API call or Prefect's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import PrefectHTTPStatusError

from plumbline import __version__
from plumbline.flows.regression import regression
from plumbline.flows.training import training
from plumbline.flows.upgrade import gate
from plumbline.night.deployment import suite_parameters
from plumbline.schema.suite import Suite
from tests.flows.stubs import deploy


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("round_id", ["..", "/elsewhere"])
def test_a_round_id_that_is_a_path_is_refused(suite: Suite, round_id: str) -> None:
    state = regression(suite=suite, round_id=round_id, return_state=True)
    assert (state.type.value, state.name) == ("FAILED", "Misconfigured")
    assert str(state.message).startswith(f"the flow run's parameters: round_id: {round_id!r} is not a valid name")


@pytest.mark.usefixtures("client")
def test_values_that_contradict_each_other_are_named(suite: Suite) -> None:
    tiny = suite.workloads["tiny"].replace(optimizer={"accumulation_steps": 3})
    state = regression(suite=suite.model_copy(update={"workloads": {"tiny": tiny}}), round_id="n", return_state=True)
    assert state.name == "Misconfigured"
    assert "suite: workloads.tiny.optimizer.accumulation_steps: 3 does not divide batch_size" in str(state.message)


@pytest.mark.first(1)
@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("flow", [training, gate], ids=["training", "gate"])
def test_a_worker_refuses_the_order_of_a_different_version(flow: Flow[..., Any]) -> None:
    for version, older in (("99.0.0", "this worker"), ("0.0.9", "the controller")):
        state = flow(order={"version": version, "unheard": True}, return_state=True)
        assert (state.type.value, state.name) == ("FAILED", "Misconfigured")
        assert state.message == (
            f"order: comes from plumbline {version} of the controller, this worker has {__version__}"
            f" (hint: update plumbline on {older})"
        )


def steps_as_text(parameters: dict[str, Any]) -> None:
    parameters["suite"]["workloads"]["tiny"]["probe"]["steps"] = "3"


def unknown_key(parameters: dict[str, Any]) -> None:
    parameters["suite"]["platfroms"] = {}


def without_a_suite(parameters: dict[str, Any]) -> None:
    del parameters["suite"]["reference"]


@pytest.mark.parametrize("spoil", [steps_as_text, unknown_key, without_a_suite])
def test_the_server_refuses_parameters_that_do_not_fit_the_schema(
    client: SyncPrefectClient, suite: Suite, spoil: Callable[[dict[str, Any]], None]
) -> None:
    deploy(suite)
    deployment = client.read_deployment_by_name(f"plumbline-regression/{suite.name}")
    parameters = suite_parameters(suite)
    spoil(parameters)
    with pytest.raises(PrefectHTTPStatusError, match=r"409|422"):
        client.create_flow_run_from_deployment(deployment.id, parameters=parameters)
    run = client.create_flow_run_from_deployment(deployment.id)
    assert run.parameters == suite_parameters(suite)
    client.delete_flow_run(run.id)
