"""Completeness of a record: all evidence that its spec requires. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.lacking import counts, lacks
from plumbline.judge.whole_learn import missing_curve
from plumbline.judge.whole_probe import missing_probe
from plumbline.judge.whole_rows import missing_rows, unequal_rows
from plumbline.judge.whole_taps import unequal_taps
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import EvaluationEvidence, ProbeEvidence
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Finding

__all__ = ["lacking_sides", "missing_evidence", "unequal_evidence"]


def missing_evidence(loaded: LoadedRecord, side: str) -> Iterator[Finding]:
    """Yield a finding for each required item that a record lacks.

    A `reference` may be the record of an earlier release: it may lack what only this release's trainer records. Its
    numbers must be finite; a candidate's number that is not is a drift, whose rung names it.
    """
    record = loaded.record
    for part in (record.experiment.part,) if record.experiment else record.spec.parts:
        if getattr(record.evidence, part) is None:
            yield lacks(
                f"{part}.evidence", "inconclusive", "evidence", f"the {side} contains no evidence of its {part} part"
            )
    if record.evidence.probe is not None:
        yield from missing_probe(loaded, record.evidence.probe, side)
    yield from missing_rows(loaded, side)
    is_curve = record.experiment is None or record.experiment.part == "learn"
    if is_curve and record.evidence.learn is not None and record.spec.learn is not None:
        yield from missing_curve(record, record.evidence.learn, record.spec.learn, side)
    yield from _speed(record, side)
    yield from _selfcheck(record, side)


def _speed(record: RunRecord, side: str) -> Iterator[Finding]:
    speed = record.evidence.speed
    if speed is None or record.spec.speed is None:
        return
    if speed.steps != record.spec.speed.steps:
        yield counts("speed.steps", "measured steps", speed.steps, record.spec.speed.steps, side)
    elif speed.wall_seconds is None and side != "reference":
        yield lacks(
            "speed.wall", "inconclusive", "wall time", f"the {side} contains no wall time of its measured steps"
        )


def _selfcheck(record: RunRecord, side: str) -> Iterator[Finding]:
    """Yield a finding if a round's training lacks its selfcheck; only an ordered training has a nonce."""
    probe = record.spec.probe
    if side == "reference" or record.experiment is not None or probe is None:
        return
    if record.nonce and probe.portable_steps and record.evidence.selfcheck is None:
        detail = f"the {side} contains no selfcheck of its machine"
        yield lacks("selfcheck.evidence", "inconclusive", "selfcheck", detail)


def unequal_evidence(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[Finding]:
    """Yield a finding for each item that only one of two records has."""
    yield from (finding for _, finding in _unequal(reference, candidate))


def lacking_sides(reference: LoadedRecord, candidate: LoadedRecord) -> frozenset[str]:
    """Return which of `reference` and `candidate` lack an item that the other record has; `either` if it is unclear."""
    return frozenset(side for side, _ in _unequal(reference, candidate))


def _unequal(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[tuple[str, Finding]]:
    left, right = reference.record.evidence, candidate.record.evidence
    yield from unequal_taps(left, right)
    yield from unequal_rows(reference, candidate)
    if left.learn and right.learn and not _other_rows(_end(left.probe), _end(right.probe)):
        ours, theirs = left.learn.evaluations[-1:], right.learn.evaluations[-1:]
        if ours and theirs and _other_rows(ours[0], theirs[0]):
            text = "rows of the last evaluation"
            finding = counts("learn.evaluation", text, theirs[0].num_rows, ours[0].num_rows, "candidate")
            yield "candidate", finding


def _end(probe: ProbeEvidence | None) -> EvaluationEvidence | None:
    return probe.evaluation if probe else None


def _other_rows(left: EvaluationEvidence | None, right: EvaluationEvidence | None) -> bool:
    return left is not None and right is not None and left.num_rows != right.num_rows
