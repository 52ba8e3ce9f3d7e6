"""Judgement of one candidate record against one reference record."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.compared import Compared, Comparisons
from plumbline.judge.gates import GATES
from plumbline.judge.gates.accuracy import parting
from plumbline.judge.gates.gate import Asked, GateRequest, PastNights
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair, log_of
from plumbline.judge.rungs.captured import captured_notes, lost_formula
from plumbline.judge.rungs.production import lost_checks, production_findings, production_notes
from plumbline.judge.rungs.proven import draw_findings, proof_findings, proof_notes
from plumbline.judge.rungs.selfcheck import selfcheck
from plumbline.judge.rungs.windows import lost_windows, sides_of, window_findings, window_notes
from plumbline.judge.spec_precision import precision_findings
from plumbline.judge.suspects import suspects_for
from plumbline.judge.walk import Walk, logged
from plumbline.records import LoadedRecord
from plumbline.schema.captured import captured
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.spec import PartName
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Finding, Judgement, Note, worst


def compare(
    reference: LoadedRecord,
    candidate: LoadedRecord,
    gates: Gates = Gates(),  # noqa: B008 - frozen
    *,
    against: str = "",
    throughput: Asked = True,
    confirms: SpeedEvidence | None = None,
    nights: PastNights = PastNights(),  # noqa: B008 - frozen
    table: Comparisons | None = None,
) -> Judgement:
    """Judge `candidate` against `reference`: verdict, first divergence and causes.

    Throughput is judged within one platform only, and only if `throughput` asks for it: a record that is not a baseline
    has no information on the expected speed of a platform. If it is `demanded`, a pair whose throughput cannot
    be judged is `inconclusive`. `confirms` is the rerun of a run that was too slow, `nights` what the history decides.
    `table` has the comparisons of the round, so that no pair is compared again.
    """
    compared = (table if table is not None else Comparisons()).of(reference, candidate)
    try:
        judgement = _judge(compared, GateRequest(gates, throughput, confirms, nights))
    except InvalidInputError as error:
        finding = Finding(check="record.parts", outcome="invalid", metric="record", detail=str(error))
        judgement = Judgement(verdict="invalid", findings=(finding,))
    findings = tuple(finding.replace(against=against or finding.against) for finding in judgement.findings)
    return judgement.replace(findings=findings)


def _judge(compared: Compared, request: GateRequest) -> Judgement:
    suspects, checked = compared.suspects, selfcheck(compared.candidate)
    if problems := compared.problems:
        return Judgement(
            verdict=worst([problem.outcome for problem in problems]),
            findings=problems,
            causes=(checked[1],) if checked else (),
            suspects=suspects,
        )
    pair, parts = compared.pair, compared.parts
    gates = [gate(pair, request) for gate in GATES]
    findings = [finding for part, found in parts.items() for finding in _findings(compared, part, found)]
    findings += compared.lost
    findings += [*(finding for gate in gates for finding in gate.findings), *proof_findings(pair)]
    findings += [checked[0]] if checked is not None else []
    causes = [_final(cause_of(each, suspects), each, part) for part, found in parts.items() for each in found]
    causes += [cause for gate in gates for cause in gate.causes]
    causes += [checked[1]] if checked is not None else []
    named = [cause for cause in causes if cause.code != "unattributed"]
    open_ones = [gate.unexplained for gate in gates if gate.unexplained is not None]
    places = [each.at for found in parts.values() for each in found]
    places += [gate.at for gate in gates if gate.at is not None]
    return Judgement(
        verdict=worst([finding.outcome for finding in findings]),
        findings=tuple(findings),
        first_divergence=next(iter(places), None),
        causes=tuple(named or (causes or open_ones)[:1]),
        suspects=suspects,
        notes=tuple(_notes(compared)),
    )


def _findings(compared: Compared, part: PartName, found: tuple[Mismatch, ...]) -> Iterator[Finding]:
    """Yield what one part shows: its mismatches, or the proofs that it has none."""
    pair = compared.pair
    yield from (finding for mismatch in found for finding in mismatch.findings)
    is_probe = part == "probe" and compared.walk is not None
    if not found:
        yield from [_equal_steps(pair)] if is_probe else []
        yield from (*window_findings(pair, part), *_lost(compared, part))
        yield from draw_findings(pair) if is_probe else production_findings(pair) if part == "speed" else ()
    if is_probe:
        yield from precision_findings(pair)


def _final(cause: Cause, mismatch: Mismatch, part: str) -> Cause:
    """Return a cause as certain as it is without an experiment."""
    if cause.code == "unattributed":
        return cause.replace(sure="unattributed")
    # No experiment repeats `speed`, or a step beside its definition.
    is_shown = mismatch.suspicions[0].shown and (part == "speed" or mismatch.basis == "stated")
    return cause.replace(sure="confirmed") if is_shown or (mismatch.basis == "proven" and part != "probe") else cause


def cause_of(mismatch: Mismatch, suspects: tuple[str, ...], suspicion: Suspicion | None = None) -> Cause:
    """Convert a mismatch's suspected cause (default: the likeliest) to a `Cause`."""
    chosen = suspicion or mismatch.suspicions[0]
    return Cause(
        code=chosen.code,
        sure="likely",
        why=chosen.why,
        evidence=chosen.evidence,
        suspects=suspects_for(chosen.code, suspects),
    )


def _equal_steps(pair: Pair) -> Finding:
    steps = len(pair.common)
    metric = fact("comparison.equal-steps")
    return Finding(check="probe.equality", outcome="pass", metric=metric, observed=steps, limit=steps)


def _lost(compared: Compared, part: PartName) -> Iterator[Finding]:
    """Yield `inconclusive` if a part's bits differ, and what would show its formula is lost."""
    pair, walk = compared.pair, compared.walk
    sides = (pair.reference, pair.candidate)
    if pair.candidate.record.experiment is not None or part not in pair.candidate.record.spec.parts:
        return
    if part == "probe":
        is_equal = walk is None or walk.equal
    else:
        is_equal = all(log_of(side, part) for side in sides) and logged(pair, part, is_due=True) is None
    why: Statement = lost_windows(pair, part) or next((lost for side in sides if (lost := lost_checks(side, part))), "")
    lacking = part == "probe" and len(sides_of(pair, part)) < len(sides)
    if captured(pair.candidate.record.spec):
        why, lacking = lost_formula(pair), False
    if not is_equal and (why or lacking):
        detail = fact("windows.lost", why=why) if why else fact("comparison.no-windows")
        yield Finding(check=f"{part}.portable", outcome="inconclusive", metric=fact("gap.windows"), detail=detail)


def _notes(compared: Compared) -> Iterator[Note]:
    pair, walk = compared.pair, compared.walk
    if walk is not None and not walk.mismatches:
        yield from _probe_notes(pair, walk)
    yield from captured_notes(pair)
    yield from (*window_notes(pair, "learn"), *window_notes(pair, "speed"), *production_notes(pair), *proof_notes(pair))


def _probe_notes(pair: Pair, walk: Walk) -> list[Note]:
    notes = []
    left, right = pair.reference.record.evidence.data, pair.candidate.record.evidence.data
    if left and right and left.manifest_sha256 != right.manifest_sha256:
        imports = right.receipt.differences(left.receipt) if right.receipt else ()
        text = joined((fact("comparison.manifest"), *(fact("data.import", difference=text) for text in imports)))
        notes.append(Note(code="manifest", text=text))
    if left and right and left.tokenizer_sha256 != right.tokenizer_sha256:
        text = fact("comparison.tokenizer")
        notes.append(Note(code="tokenizer", text=text))
    if walk.equal:
        notes.append(Note(code="equal-bits", text=fact("comparison.equal-bits")))
        if (step := parting(pair)) is not None:
            text = fact("comparison.curve-parts", step=step)
            notes.append(Note(code="curve", text=text))
        return notes
    if walk.proven:
        text = fact("comparison.proven", num=walk.proven)
        notes.append(Note(code="portable", text=text))
    reasons, more = joined(walk.rounding[:3]), "; …" if len(walk.rounding) > 3 else ""
    return [*notes, Note(code="rounding", text=fact("comparison.rounding", reasons=reasons, more=more))]
