"""Whether two records can be judged at all. What is missing, mismatched or not finite never passes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Finding, Outcome

__all__ = ["INFRASTRUCTURE", "validity"]

INFRASTRUCTURE = frozenset(
    {"staging", "unavailable", "disk", "disk-full", "access", "cancelled", "interrupted", "timeout"}
)
"""Exit codes that tell of the machine, not of the training."""


def validity(reference: LoadedRecord, candidate: LoadedRecord) -> list[Finding]:
    """Everything that stands against judging the two; empty if nothing does."""
    left, right = reference.record, candidate.record
    if left.spec_sha256 != right.spec_sha256:
        return [
            _bad(
                "record.spec", "invalid", "SHA-256 of the spec", right.spec_sha256, left.spec_sha256, detail=_OTHER_TASK
            )
        ]
    found = [
        finding for side, who in ((reference, "reference"), (candidate, "candidate")) for finding in _one(side, who)
    ]
    if (left.experiment is None) != (right.experiment is None):
        what = "one of the records is an experiment's, not a training's"
        found.append(_bad("record.experiment", "invalid", "experiment", detail=what))
    return found


_OTHER_TASK = "two trainings are comparable only under one spec"


def _one(side: LoadedRecord, who: str) -> Iterator[Finding]:
    record = side.record
    if record.exit.status != "completed":
        yield _failed(record, who)
        return
    for part in record.spec.parts:
        if getattr(record.evidence, part) is None:
            yield _bad(f"{part}.evidence", "inconclusive", "evidence", detail=f"the {who} holds none of its {part}")
    if record.evidence.probe is not None:
        yield from _probe(side, record.evidence.probe, who)
    learn = record.evidence.learn
    if learn is not None and any(loss is None for loss in learn.losses):
        yield _bad("learn.loss", "invalid", "loss", detail=f"a loss of the {who} is no finite number")


def _failed(record: RunRecord, who: str) -> Finding:
    outcome: Outcome = "inconclusive" if record.exit.code in INFRASTRUCTURE else "invalid"
    place = " ".join(
        part for part in (record.exit.part, f"step {record.exit.step}" if record.exit.step else "") if part
    )
    detail = f"the {who} failed{f' in {place}' if place else ''}: {record.exit.message or record.exit.code}"
    return _bad("record.exit", outcome, "exit", record.exit.code or record.exit.status, "completed", detail=detail)


def _probe(side: LoadedRecord, probe: ProbeEvidence, who: str) -> Iterator[Finding]:
    asked = side.record.experiment.steps if side.record.experiment else _steps(side.record)
    if [step.step for step in probe.steps] != list(range(asked)):
        yield _bad(
            "probe.steps",
            "invalid",
            "steps",
            len(probe.steps),
            asked,
            detail=f"the {who}'s steps are not those asked for",
        )
    missing = next((step.step for step in probe.steps if not _finite(step.loss)), None)
    if missing is not None:
        yield _bad("probe.loss", "invalid", f"loss at step {missing}", detail=f"of the {who} is no finite number")
    if probe.taps and "sketch" not in side.sketches:
        yield _bad(
            "probe.sketches", "invalid", "sketches", detail=f"the {who} holds none for its {len(probe.taps)} taps"
        )
    if not any(tap.stage == "forward" for tap in probe.taps):
        yield _bad("probe.taps", "inconclusive", "taps", 0, 1, detail=f"the {who} sketched no module's output")
    if side.record.experiment is None and probe.evaluation is None:
        yield _bad("probe.evaluation", "inconclusive", "evaluation", detail=f"the {who} holds none")
    if side.record.evidence.data is None or side.record.evidence.model is None:
        yield _bad("probe.evidence", "inconclusive", "evidence", detail=f"the {who} holds none of its data or model")


def _steps(record: RunRecord) -> int:
    return record.spec.probe.steps if record.spec.probe else 0


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
