"""`compare`: one candidate judged against one reference."""

from __future__ import annotations

from typing import Literal

from plumbline.errors import InvalidInputError
from plumbline.judge.breaks import Break, Suspicion
from plumbline.judge.ladder import Ladder, walk
from plumbline.judge.learn import learn, parting
from plumbline.judge.pair import Pair, TapError
from plumbline.judge.speed import speed
from plumbline.judge.suspects import differences, suspects_for
from plumbline.judge.validity import validity
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Divergence, Finding, Judgement, worst

__all__ = ["cause_of", "compare"]

_Asked = bool | Literal["demanded"]


def compare(
    reference: LoadedRecord,
    candidate: LoadedRecord,
    gates: Gates = Gates(),  # noqa: B008 - frozen
    *,
    against: str = "",
    throughput: _Asked = True,
    confirms: SpeedEvidence | None = None,
) -> Judgement:
    """The verdict on `candidate`, its first divergence and causes.

    Throughput is judged within one platform only, and where `throughput` asks for it: a record that is nobody's
    baseline says nothing about how fast a platform should be. Where it is `demanded`, a pair whose throughput cannot
    be judged is `inconclusive`. `confirms` is the rerun of a run that was too slow.
    """
    try:
        judgement = _compare(reference, candidate, gates, confirms, throughput)
    except InvalidInputError as error:
        finding = Finding(check="record.parts", outcome="invalid", metric="record", detail=str(error))
        judgement = Judgement(verdict="invalid", findings=(finding,))
    findings = tuple(one.replace(against=against or one.against) for one in judgement.findings)
    return judgement.replace(findings=findings)


def _compare(
    reference: LoadedRecord, candidate: LoadedRecord, gates: Gates, confirms: SpeedEvidence | None, throughput: _Asked
) -> Judgement:
    suspects = differences(reference.record.fingerprint, candidate.record.fingerprint)
    problems = validity(reference, candidate)
    if problems:
        return Judgement(verdict=worst([one.outcome for one in problems]), findings=tuple(problems), suspects=suspects)
    pair = Pair(reference, candidate)
    findings: list[Finding] = []
    causes: list[Cause] = []
    notes: list[str] = []
    divergence: Divergence | None = None
    if pair.probes is not None:
        ladder = walk(pair)
        findings += _probe_findings(pair, ladder)
        causes += [cause_of(one, suspects) for one in ladder.breaks]
        divergence = ladder.breaks[0].at if ladder.breaks else None
        notes += _notes(pair, ladder)
    findings += learn(pair, gates)
    if throughput:
        slow, why = speed(pair, gates, confirms=confirms, demanded=throughput == "demanded")
        findings, causes = findings + slow, causes + why
        divergence = divergence or (Divergence(stage="speed", at="throughput") if why else None)
    if any(one.check == "learn.accuracy" and one.outcome == "drift" for one in findings) and not causes:
        causes.append(_UNEXPLAINED)
        divergence = divergence or Divergence(stage="learn", at="accuracy")
    return Judgement(
        verdict=worst([one.outcome for one in findings]),
        findings=tuple(findings),
        first_divergence=divergence,
        causes=tuple(causes),
        suspects=suspects,
        notes=tuple(notes),
    )


_UNEXPLAINED = Cause(
    code="unattributed",
    sure="unattributed",
    why="the accuracy differs, and nothing in the probe tells why: only a part of training that it does not reach can",
)


def cause_of(one: Break, suspects: tuple[str, ...], suspicion: Suspicion | None = None) -> Cause:
    """A break's likeliest cause in the words of a verdict."""
    chosen = suspicion or one.suspicions[0]
    return Cause(
        code=chosen.code,
        sure="likely",
        why=chosen.why,
        evidence=chosen.evidence,
        suspects=suspects_for(chosen.code, suspects),
    )


def _probe_findings(pair: Pair, ladder: Ladder) -> list[Finding]:
    broken = [finding for one in ladder.breaks for finding in one.findings]
    if broken:
        return broken
    steps = len(pair.common)
    exact = Finding(
        check="probe.equality",
        outcome="pass",
        metric="steps whose batches, generators, learning rates and settings are equal",
        observed=steps,
        limit=steps,
    )
    found = [exact]
    worst_tap = _closest(pair)
    if worst_tap is not None:
        found.append(
            Finding(
                check=f"probe.{worst_tap.reference.stage}",
                outcome="pass",
                metric=f"relative error of {worst_tap.reference.name} at step {worst_tap.reference.step}",
                observed=worst_tap.error,
                limit=worst_tap.limit,
                detail="of all tensors the closest to its limit",
            )
        )
    return found


def _closest(pair: Pair) -> TapError | None:
    stages = ("forward", "gradient", "weight")
    errors = [one for step in sorted(pair.tap_steps) for stage in stages for one in pair.errors(step, stage)]  # type: ignore[arg-type]
    return max(errors, key=lambda one: one.error / one.limit if one.limit else 0.0, default=None)


def _notes(pair: Pair, ladder: Ladder) -> list[str]:
    if ladder.breaks:
        return []
    notes = []
    left, right = pair.reference.record.evidence.data, pair.candidate.record.evidence.data
    if left and right and left.manifest_sha256 != right.manifest_sha256:
        notes.append("data: the manifests differ, every row of theirs is the same")
    if ladder.equal:
        step = parting(pair)
        apart = (
            [] if step is None else [f"learn: the curves part at step {step}, after a probe that is equal to the bit"]
        )
        return [*notes, "every bit of the probe is the same", *apart]
    reasons = "; ".join(ladder.rounding[:3]) + ("; …" if len(ladder.rounding) > 3 else "")
    closest = _closest(pair)
    size = f", at most {closest.error:.2g} where {closest.limit:.2g} is rounding" if closest else ""
    return [*notes, f"kernel: the runs differ by rounding alone{size} ({reasons})"]
