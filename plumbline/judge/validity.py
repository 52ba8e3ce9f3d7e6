"""Checks of two records before they are judged. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plumbline.errors import InvalidInputError
from plumbline.judge.spec_differences import spec_findings
from plumbline.judge.whole import missing_evidence, unequal_evidence
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Finding, Outcome

__all__ = ["defects", "stands_alone", "validity"]


def validity(reference: LoadedRecord, candidate: LoadedRecord) -> list[Finding]:
    """Return a finding for each reason against judging the pair."""
    left, right = reference.record, candidate.record
    if left.spec_sha256 != right.spec_sha256:
        digest = _bad(
            "record.spec", "invalid", "SHA-256 of the spec", right.spec_sha256, left.spec_sha256, detail=_OTHER_TASK
        )
        return [digest, *spec_findings(reference, candidate)]
    findings = [*defects(reference, "reference"), *defects(candidate, "candidate")]
    if (left.experiment is None) != (right.experiment is None):
        detail = "one of the records is an experiment's, not a training's"
        findings.append(_bad("record.experiment", "invalid", "experiment", detail=detail))
    return findings or list(unequal_evidence(reference, candidate))


def stands_alone(record: LoadedRecord) -> bool:
    """Return whether a record is readable, complete, finite and of a completed training."""
    try:
        return not validity(record, record)
    except InvalidInputError:
        return False


_OTHER_TASK = "two trainings are comparable only under one spec"


def defects(loaded: LoadedRecord, side: str) -> Iterator[Finding]:
    """Yield a finding for each reason against judging a record, whatever it is compared with."""
    record = loaded.record
    if record.exit.status != "completed":
        yield _failed(record, side)
        return
    yield from missing_evidence(loaded, side)
    probe, learn = record.evidence.probe, record.evidence.learn
    if probe is not None:
        missing = next((step.step for step in probe.steps if not _finite(step.loss)), None)
        if missing is not None:
            yield _bad("probe.loss", "invalid", f"loss at step {missing}", detail=f"of the {side} is no finite number")
    if learn is not None and any(loss is None for loss in learn.losses):
        yield _bad("learn.loss", "invalid", "loss", detail=f"a loss of the {side} is no finite number")


def _failed(record: RunRecord, side: str) -> Finding:
    outcome: Outcome = "inconclusive" if record.exit.is_infrastructure else "invalid"
    place = " ".join(
        part for part in (record.exit.part, f"step {record.exit.step}" if record.exit.step else "") if part
    )
    detail = f"the {side} failed{f' in {place}' if place else ''}: {record.exit.message or record.exit.code}"
    return _bad("record.exit", outcome, "exit", record.exit.code or record.exit.status, "completed", detail=detail)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _bad(
    check: str,
    outcome: Outcome,
    metric: str,
    observed: float | str | None = None,
    limit: float | str | None = None,
    *,
    detail: str = "",
) -> Finding:
    return Finding(check=check, outcome=outcome, metric=metric, observed=observed, limit=limit, detail=detail)
