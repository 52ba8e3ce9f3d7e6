"""Judgement of one candidate record against one reference record."""

from __future__ import annotations

from plumbline.judge.compared import Compared, Comparisons
from plumbline.judge.gates import GATES
from plumbline.judge.gates.accuracy import parting
from plumbline.judge.gates.gate import Asked, GateRequest
from plumbline.judge.gates.production import production_gate, production_notes
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import other_kernels
from plumbline.judge.rungs.order import excused
from plumbline.judge.rungs.proven import draw_findings, other_draws
from plumbline.judge.rungs.selfcheck import selfcheck
from plumbline.judge.rungs.windows import lost_windows, window_findings, window_notes
from plumbline.judge.spec_precision import precision_findings
from plumbline.judge.stated import contradiction
from plumbline.judge.suspects import suspects_for
from plumbline.judge.walk import Walk
from plumbline.records import LoadedRecord
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import fact, joined
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
    table: Comparisons | None = None,
) -> Judgement:
    """Judge `candidate` against `reference`: verdict, first divergence and causes.

    Throughput is judged within one platform only, and only if `throughput` asks for it: a record that is not a baseline
    has no information on the expected speed of a platform. If it is `demanded`, a pair whose throughput cannot
    be judged is `inconclusive`. `confirms` is the rerun of a run that was too slow. `table` has the comparisons of the
    round, so that no pair is compared again.
    """
    compared = (table if table is not None else Comparisons()).of(reference, candidate)
    try:
        judgement = _judge(compared, GateRequest(gates, throughput, confirms))
    except InvalidInputError as error:
        finding = Finding(check="record.parts", outcome="invalid", metric="record", detail=str(error))
        judgement = Judgement(verdict="invalid", findings=(finding,))
    findings = tuple(finding.replace(against=against or finding.against) for finding in judgement.findings)
    return judgement.replace(findings=findings)


def _judge(compared: Compared, request: GateRequest) -> Judgement:
    problems, suspects, checked = compared.problems, compared.suspects, selfcheck(compared.candidate)
    if problems:
        return Judgement(
            verdict=worst([problem.outcome for problem in problems]),
            findings=problems,
            causes=(checked[1],) if checked else (),
            suspects=suspects,
        )
    pair, walk = compared.pair, compared.walk
    findings: list[Finding] = []
    mismatches: list[Mismatch] = []
    if walk is not None:
        findings += _probe_findings(pair, walk)
        mismatches += walk.mismatches
        findings += [] if mismatches else draw_findings(pair)
        findings += [*_lost_portable(pair, walk), *precision_findings(pair)]
    causes = [cause_of(mismatch, suspects) for mismatch in mismatches]
    findings += [finding for mismatch in compared.curve for finding in mismatch.findings]
    of_gate, curve = {gate: gate(pair, request) for gate in GATES}, compared.curve
    results = [*of_gate.values()]
    causes += [_sure_of(cause_of(mismatch, suspects)) for mismatch in curve]
    named = {cause.code for cause in (*causes, *(cause for result in results for cause in result.causes))}
    parts = tuple(part for part, found in (("speed", of_gate[production_gate].causes), ("learn", curve)) if not found)
    own, stages = contradiction(pair.candidate.record, parts), {mismatch.at.stage for mismatch in mismatches}
    if own is not None and own.causes[0].code not in named and (own.at is None or own.at.stage not in stages):
        results.append(own)
    elif own is None and (drawn := other_draws(pair)) is not None and "rng" not in named:
        results.append(drawn)
    if not compared.curve:
        findings += [*window_findings(pair, "learn"), *_lost_curve(pair)]
    findings += [finding for result in results for finding in result.findings]
    explained = [*causes, *(cause for result in results for cause in result.causes)]
    if checked is not None:
        findings.append(checked[0])
        explained.append(checked[1])
    open_ones = [result.unexplained for result in results if result.unexplained is not None]
    places = [mismatch.at for mismatch in (*curve[:1], *mismatches)]
    places += [result.at for result in results if result.at is not None]
    return Judgement(
        verdict=worst([finding.outcome for finding in findings]),
        findings=tuple(findings),
        first_divergence=next(iter(places), None),
        causes=tuple(_with_guess(explained, open_ones)),
        suspects=suspects,
        notes=(
            *(_notes(pair, walk) if walk is not None else ()),
            *window_notes(pair, "learn"),
            *window_notes(pair, "speed"),
            *production_notes(pair),
        ),
    )


def _with_guess(causes: list[Cause], guesses: list[Cause]) -> list[Cause]:
    """Append one guessed cause if no cause is known."""
    if any(cause.code != "unattributed" for cause in causes):
        return causes
    return causes + [guess for guess in guesses if not causes or guess.code != "unattributed"][:1]


def _sure_of(cause: Cause) -> Cause:
    return cause.replace(sure="unattributed") if cause.code == "unattributed" else cause


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


def _probe_findings(pair: Pair, walk: Walk) -> list[Finding]:
    broken = [finding for mismatch in walk.mismatches for finding in mismatch.findings]
    if broken:
        return broken
    steps = len(pair.common)
    exact = Finding(
        check="probe.equality",
        outcome="pass",
        metric=fact("comparison.equal-steps"),
        observed=steps,
        limit=steps,
    )
    return [exact, *window_findings(pair, "probe")]


def _lost_curve(pair: Pair) -> list[Finding]:
    """Return a finding if curves from different kernels lack portable comparisons."""
    why = lost_windows(pair, "learn")
    if not why or pair.candidate.record.experiment is not None or not other_kernels(pair, "learn"):
        return []
    detail = fact("windows.lost", why=why)
    return [Finding(check="learn.portable", outcome="inconclusive", metric="windows", detail=detail)]


def _lost_portable(pair: Pair, walk: Walk) -> list[Finding]:
    """Return `inconclusive` if bits differ without windows to compare."""
    is_experiment = pair.candidate.record.experiment is not None
    sides = [probe.portable for probe in pair.probes or ()]
    lost = [side.lost for side in sides if side is not None and side.lost]
    if walk.equal or walk.mismatches or is_experiment or not (lost or None in sides):
        return []
    detail = fact("comparison.lost-windows", why=lost[0]) if lost else fact("comparison.no-windows")
    return [Finding(check="probe.portable", outcome="inconclusive", metric=fact("gap.windows"), detail=detail)]


def _notes(pair: Pair, walk: Walk) -> list[Note]:
    if walk.mismatches:
        return []
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
    if (order := excused(pair)) is not None:
        place, largest = order
        text = fact("comparison.portable-order", place=place, largest=largest)
        notes.append(Note(code="portable-order", text=text))
    reasons, more = joined(walk.rounding[:3]), "; …" if len(walk.rounding) > 3 else ""
    return [*notes, Note(code="rounding", text=fact("comparison.rounding", reasons=reasons, more=more))]
