"""Requests of experiments, and whether a record answers one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.judge.curves import Window, trace_problem
from plumbline.judge.intervention import Source
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema.digest import bounded_name
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.experiment import Experiment
from plumbline.schema.fact import Statement, fact

NO_RECORD = fact("experiment.no-record")
_NAMES = {"experiment_id": "x", "suspect": ""}
"""Fields of an experiment that do not change what it runs."""


@dataclass(frozen=True, slots=True)
class Request:
    """One experiment to run, its platform, and the record parts that it reads."""

    runs_on: Literal["reference", "candidate"]
    experiment: Experiment
    sources: tuple[Source, ...] = ()


def unanswered(request: Request, record: LoadedRecord, window: Window | None = None) -> Statement:
    """Return why a record does not answer a request; empty if it does, or if its training failed.

    A record without evidence differs from nothing: it would confirm every suspicion. The record's name is bound by its
    order; what it ran is compared here. In a `window` of the learning curve the evidence is that of a trace.
    """
    experiment = record.record.experiment
    if experiment is None or experiment.replace(**_NAMES) != request.experiment.replace(**_NAMES):
        return fact("experiment.different")
    if record.record.exit.status != "completed":
        return ""
    try:
        missing = next((finding.detail for finding in missing_evidence(record, "experiment")), "")
        traced = Window(window.first, request.experiment.steps) if window is not None else None
        return missing or (trace_problem(record, traced) if traced is not None else "")
    except InvalidInputError as error:
        return fact("experiment.unreadable", error=error)


def experiment_name(record_id: str, spent: int) -> str:
    """Return the name of the next experiment on a record, after `spent` of them."""
    return bounded_name(f"{record_id}-x{spent + 1}")
