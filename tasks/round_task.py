"""Prefect task that does not search its arguments for task results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.utilities.annotations import opaque

P = ParamSpec("P")
R = TypeVar("R")


class _RoundTask(Task[P, R]):
    # Prefect searches arguments for results of other tasks, value by value: most of a controller's computation.
    def __call__(self, *args: Any, **options: Any) -> Any:
        return super().__call__(*map(opaque, args), **options)


def round_task(name: str, *, retries: int = 0) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Return a decorator like Prefect's `task`, with retries after 5 s."""
    return lambda function: _RoundTask(
        function, name=name, persist_result=False, retries=retries, retry_delay_seconds=5
    )
