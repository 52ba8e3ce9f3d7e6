"""The watch: a short flow that asks every few minutes whether the nightly round ran, and sends what is pending."""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from plumbline.schema.suite import read_suite
from tasks.watching import check_missed

__all__ = ["watch"]


@flow(name="watch", persist_result=False, validate_parameters=False)
def watch(suite_file: str) -> State[None]:
    """Alert a round that was due and did not start; deliver what could not be delivered before."""
    told, failed = check_missed(read_suite(Path(suite_file)))
    if failed:
        return Failed(message="; ".join(failed))
    return Completed(message=told or "the last round that was due did run")
