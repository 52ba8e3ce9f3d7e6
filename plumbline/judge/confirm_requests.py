"""Requests of experiments: which experiment a state of the tests needs next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plumbline.digest import bounded_name
from plumbline.errors import InvalidInputError
from plumbline.judge.confirm_state import ConfirmationState
from plumbline.judge.curve_trace import Window, trace_problem
from plumbline.judge.intervention import Intervention, Kept, Source
from plumbline.judge.own_evaluation import may_hide
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema.experiment import Experiment, Replay
from plumbline.schema.fact import Statement, fact

__all__ = ["NO_RECORD", "Request", "experiment_name", "next_of_causes", "next_request", "unanswered"]


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


def next_request(state: ConfirmationState) -> Request | None:
    """Return the next experiment; `None` at the end or without budget left."""
    return next_of_causes(state) or _next_of_evaluation(state)


def next_of_causes(state: ConfirmationState) -> Request | None:
    """Return the next experiment on a mismatch."""
    if not state.pending_mismatches or state.spent >= state.budget or (state.rerun is not None and not state.ways):
        return None
    if state.rerun is None:
        # A difference of portable bits shows in nothing else.
        has_leg = any(mismatch.basis == "portable" for mismatch in state.pending_mismatches)
        text = "control experiment: unchanged rerun"
        return _request(state, "candidate", text, state.probe_steps(), portable=has_leg)
    lacking = next((each.way for each in state.kept if each.lacks_capture), None)
    if lacking is not None:
        return _capture(state, lacking)
    return _tested(state, state.ways[0])


def _next_of_evaluation(state: ConfirmationState) -> Request | None:
    """Return the next run that evaluates by the definition, where the settled causes may hide a fault of it."""
    causes = state.settled.causes
    if state.own.is_closed or state.spent >= state.most or state.pending_mismatches:
        return None
    if any(cause.sure != "confirmed" for cause in causes):
        return None
    if not may_hide(state.reference, state.candidate, [cause.code for cause in causes]):
        return None
    side: Literal["reference", "candidate"] = "reference" if state.own.found else "candidate"
    description = "the evaluation by its definition"
    return _request(state, side, description, state.probe_steps(), replays=(Replay(rung="evaluation"),))


def _capture(state: ConfirmationState, way: Intervention) -> Request:
    return _request(
        state,
        "reference",
        f"capture of {way.description}",
        way.steps,
        captures=way.captures,
    )


def _tested(state: ConfirmationState, way: Intervention) -> Request:
    """Return the next experiment that restores the suspect's value."""
    if way.method in ("exact", "locate"):
        side: Literal["reference", "candidate"] = "candidate" if state.exact else "reference"
        if way.method == "exact":
            return _request(state, side, way.description, way.steps, precision="fp64")
        return _request(
            state, side, way.description, way.steps, **(_imposed(state.kept, way.steps) if state.exact else {})
        )
    if way.captures and not state.captured:
        return _capture(state, way)
    kept = (*state.kept, Kept(way, state.captured))
    description = " and ".join(each.way.description for each in kept)
    return _request(state, "candidate", description, way.steps, **_imposed(kept, way.steps))


def _imposed(kept: tuple[Kept, ...], steps: int) -> dict[str, object]:
    """Return the replays and sources of all restored suspects within `steps`."""
    return {
        "replays": tuple(replay for each in kept for replay in each.replays(steps)),
        "sources": tuple({source.key: source for each in kept for source in each.sources()}.values()),
    }


def _request(
    state: ConfirmationState, side: Literal["reference", "candidate"], description: str, steps: int, **parts: object
) -> Request:
    sources = parts.pop("sources", ())
    if state.in_fp64 is not None:
        parts.setdefault("precision", "fp64")
    if state.window is not None:
        first = state.window.first
        parts |= {"part": "learn", "trace": first, "portable": False}
        steps += first
    name = experiment_name(state.subject or state.candidate.record.record_id, state.spent)
    experiment = Experiment(experiment_id=name, suspect=description, steps=steps, **parts)
    return Request(side, experiment, sources)  # type: ignore[arg-type]


def experiment_name(record_id: str, spent: int) -> str:
    """Return the name of the next experiment on a record, after `spent` of them."""
    return bounded_name(f"{record_id}-x{spent + 1}")
