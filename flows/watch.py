"""The watch: a short flow that asks every few minutes whether the nightly round started and still lives."""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.schema.suite import read_suite
from tasks.vanished import check_vanished
from tasks.watching import check_missed

__all__ = ["watch"]


@flow(name="watch", persist_result=False, validate_parameters=False)
def watch(suite_file: str) -> State[None]:
    """Alert a round that was due and did not start, or that has lost its controller; deliver what is still pending."""
    suite = read_suite(Path(suite_file))
    # First: it needs no central store, whose failure may be what the night has died of.
    gone = [f"{name} has lost its controller" for name in check_vanished(suite)]
    told, failed = check_missed(suite)
    if failed:
        return Failed(message="; ".join([*failed, *gone]))
    return Completed(message="; ".join([told or "the last round that was due did run", *gone]))
