"""Confirmation by experiment: a pure state machine that requests reruns and evaluates their records.

Its states: the candidate runs again unchanged (`rerun`), which shows whether it agrees with itself. Each suspicion is
tested (`test`, see `suspicions`): the first steps run again with the suspect's value restored to the reference's. If
the difference disappears, the cause is confirmed; if not, the next suspicion is tested. Of a learning curve that no
definition restores, the reference runs again, too (`reference`, see `curves`). After the last test the cause is
`unattributed`, with everything that was tried (`ended`). The caller runs the requests.
"""

from __future__ import annotations

from dataclasses import replace

from plumbline.judge import curves, suspicions
from plumbline.judge.attribution import SPEED, unsteady
from plumbline.judge.compared import Comparisons
from plumbline.judge.confirmation import Confirmation, Request
from plumbline.judge.mismatches import Mismatch, without
from plumbline.judge.native import rounds_differently
from plumbline.judge.restored import disagreement
from plumbline.judge.walk import walk
from plumbline.judge.whole import missing_evidence
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Judgement

_NO_RECORD = fact("experiment.no-record")
_NAMES = {"experiment_id": "x", "suspect": ""}
"""Fields of an experiment that do not change what it runs."""


def begin(
    reference: LoadedRecord,
    candidate: LoadedRecord,
    judgement: Judgement,
    budget: int,
    table: Comparisons | None = None,
) -> Confirmation:
    """Create the initial state, for at most `budget` reruns; `table` caches the comparison of the two records."""
    beside = tuple(cause for cause in judgement.causes if cause.code in SPEED)
    start = Confirmation(reference, candidate, judgement, budget, candidate.record.record_id, beside=beside)
    compared = (table if table is not None else Comparisons()).of(reference, candidate)
    if budget > 0 and (found := curves.separated(judgement, compared.pair)) is not None:
        beside = tuple(cause for cause in judgement.causes if cause.code != found[0].suspicions[0].code)
        return replace(start, state="rerun", pending=found[:1], curve=found[1], beside=beside)
    if judgement.verdict != "drift" or budget < 1:
        return start
    mismatches = (compared.walk or walk(compared.pair)).mismatches  # data may differ without a probe
    return replace(start, state="rerun" if mismatches else "ended", pending=mismatches)


def next_request(state: Confirmation) -> Request | None:
    """Return the next experiment; `None` when finished or out of budget."""
    if state.state == "ended" or not state.has_budget:
        return None
    if state.state == "rerun":
        # A difference of windows shows in nothing else.
        has_windows = any(mismatch.basis == "portable" for mismatch in state.pending)
        of_curve = " of the learning curve" if state.curve else ""
        text = f"control experiment: unchanged rerun{of_curve}"
        return state.request("candidate", text, state.num_steps, portable=has_windows)
    if state.state == "reference":
        text = "control experiment: unchanged rerun of the reference's learning curve"
        return state.request("reference", text, state.num_steps)
    return suspicions.requested(state)


def after_experiment(
    state: Confirmation, request: Request, record: LoadedRecord | None, why: Statement = _NO_RECORD
) -> Confirmation:
    """Return the state after an experiment's record; `None`: lost, see `why`.

    A record that does not answer the request is lost, too. One lost experiment is repeated, without charge.
    """
    spent = replace(state, spent=state.spent + 1)
    if record is not None and (problem := _unanswered(request, record)):
        record, why = None, problem
    if record is None and state.lost < limits.MOST_LOST:
        return replace(spent, lost=state.lost + 1)
    if record is None or record.record.exit.status != "completed":
        why = why if record is None else record.record.exit.message
        return _failed(spent, fact("experiment.failed", suspect=request.experiment.suspect, why=why))
    if state.state == "rerun":
        return _reran(spent, record)
    if state.state == "reference" and state.curve is not None:
        return curves.reference_reran(spent, state.curve, record)
    answer = suspicions.prepared if request.runs_on == "reference" else suspicions.restored
    return answer(spent, record)


def _unanswered(request: Request, record: LoadedRecord) -> Statement:
    """Return why a record is no valid result of a request; empty if valid, or if its training failed.

    A record without evidence differs from nothing: it would confirm every suspicion. The order fixes the record's
    name; this method compares the experiment that the record ran with the requested one.
    """
    asked, experiment = request.experiment, record.record.experiment
    if experiment is None or experiment.replace(**_NAMES) != asked.replace(**_NAMES):
        return fact("experiment.different")
    if record.record.exit.status != "completed":
        return ""
    try:
        return next((finding.detail for finding in missing_evidence(record, "experiment")), "")
    except InvalidInputError as error:
        return fact("experiment.unreadable", error=error)


def _failed(state: Confirmation, text: Statement) -> Confirmation:
    """Record a failed experiment; try another test of the same suspicion, or end."""
    others = [way for suspicion, way in state.tests[1:] if suspicion == state.tests[0][0]]
    if state.state != "test" or not others or any(way.captures for way in state.kept):
        return state.ended(text)
    return suspicions.following(replace(state, tried=(*state.tried, text)))


def _reran(state: Confirmation, record: LoadedRecord) -> Confirmation:
    """Evaluate the unchanged rerun: confirm or rule out `nondeterminism`."""
    curve, probe = state.curve, record.record.evidence.probe
    parting = None if curve else disagreement(state.candidate, record, probe.num_steps if probe else 0)
    if curves.has_equal_bits(state.candidate, record, curve) if curve else parting is None:
        beside = curves.repeated(state, record) if curve else state.beside
        pending = tuple(without("nondeterminism", mismatch) for mismatch in state.pending)
        tried = (fact("rerun.equal-bits"),)
        return suspicions.opened(replace(state, beside=beside, tried=tried, rerun=record, pending=pending))
    kernels = rounds_differently(state.candidate.record, record.record, "learn" if curve else "probe")
    if kernels:  # such as another number of processes: no unchanged rerun
        return state.ended(fact("rerun.different-machine", difference=kernels[0]))
    if parting is not None:
        return _unsteady(state, record, parting)
    return curves.unsteady_curve(state, curve, record) if curve else state


def _unsteady(state: Confirmation, record: LoadedRecord, parting: Mismatch) -> Confirmation:
    # Values that vary by chance may agree at some steps: no mismatch of that stage is a separate cause.
    # A portable window that did not repeat itself is the same finding again.
    rest = tuple(
        mismatch
        for mismatch in state.pending
        if mismatch.position < parting.position
        and mismatch.stage != parting.stage
        and mismatch.suspicions[0].code != "device"
    )
    settled = (*state.settled, unsteady(parting))
    return suspicions.opened(replace(state, rerun=record, settled=settled, pending=rest))
