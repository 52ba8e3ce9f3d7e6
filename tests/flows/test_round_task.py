"""Tasks of a round on a real server: arguments of any size cost Prefect nothing."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow
from prefect.context import TaskRunContext

from plumbline.tasks.round_task import round_task


class Evidence(dict[str, Any]):
    """Evidence that fails a run in which Prefect reads all of it."""

    def items(self) -> Any:
        raise AssertionError("searched")


@pytest.mark.usefixtures("client")
def test_arguments_are_not_searched_and_link_a_task_to_the_one_before() -> None:
    @round_task("gather")
    def gather() -> list[list[Evidence]]:
        return [[Evidence(loss=1.0)]]

    @round_task("judge")
    def judge(records: list[list[Evidence]]) -> tuple[float, int]:
        context = TaskRunContext.get()
        return float(records[0][0]["loss"]), len(context.task_run.task_inputs["records"])

    @flow(persist_result=False)
    def night() -> tuple[tuple[float, int], Any]:
        return judge(found := gather()), judge(found, return_state=True).result()

    assert night() == ((1.0, 1), (1.0, 1))
