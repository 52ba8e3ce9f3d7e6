"""Completeness of a record: all evidence its spec requires. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from plumbline.judge.gaps import Gap
from plumbline.judge.lost_proofs import lost_proofs
from plumbline.judge.one_sided import one_sided
from plumbline.judge.own_distance import OwnDistances
from plumbline.judge.required import gaps
from plumbline.judge.taps import unequal_taps
from plumbline.records import LoadedRecord
from plumbline.schema.captured import captured
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.verdict import Finding, Outcome


@dataclass(frozen=True)
class WholeRecord(LoadedRecord):
    """Record with cached completeness checks, for use as reference or candidate."""

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Return all missing evidence; raise `InvalidInputError` for an unreadable part.

        A reference's numbers must be finite; a candidate's number that is not is a drift, whose rung names it.
        """
        return tuple(gaps(self))

    @cached_property
    def own(self) -> OwnDistances:
        """Return the record's distances from its own windows, cached."""
        return OwnDistances(self)

    def defects(self, side: str) -> list[Finding]:
        """Return why the record cannot be judged as `side`."""
        if self.record.exit.status != "completed":
            return [_failed(self.record, side)]
        return [*self.missing(side), *_not_finite(self.record, side)]

    def missing(self, side: str) -> list[Finding]:
        """Return a finding for each item missing in this role."""
        role = "reference" if side == "reference" else "candidate"
        return [gap.finding(side) for gap in self.gaps if gap.role in (None, role)]


def whole(loaded: LoadedRecord) -> WholeRecord:
    """Wrap a record with completeness checks, run on first use."""
    if isinstance(loaded, WholeRecord):
        return loaded
    return WholeRecord(loaded.record, loaded.folder, loaded.arrays, loaded.sha256)


def missing_evidence(loaded: LoadedRecord, side: str) -> list[Finding]:
    """Return a finding for each required item that a record lacks."""
    return whole(loaded).missing(side)


def stands_alone(loaded: LoadedRecord) -> bool:
    """Return whether a record is readable, complete, finite and from completed training."""
    record = whole(loaded)
    try:
        return not record.defects("reference") and not record.defects("candidate")
    except InvalidInputError:
        return False


def _not_finite(record: RunRecord, side: str) -> Iterator[Finding]:
    probe, learn = record.evidence.probe, record.evidence.learn
    losses = list(enumerate(probe.losses)) if probe is not None else []
    if captured(record.spec) and all(loss is None for _, loss in losses):
        losses = []  # the loop shows none, as the record says
    missing = next((step for step, loss in losses if loss is None or not math.isfinite(loss)), None)
    if missing is not None:
        detail = fact("whole.not-finite", side=side)
        yield Finding(check="probe.loss", outcome="invalid", metric=fact("whole.loss-at", step=missing), detail=detail)
    if learn is not None and any(loss is None for loss in learn.losses):
        detail = fact("whole.loss-not-finite", side=side)
        yield Finding(check="learn.loss", outcome="invalid", metric="loss", detail=detail)


def _failed(record: RunRecord, side: str) -> Finding:
    outcome: Outcome = "inconclusive" if record.exit.is_infrastructure else "invalid"
    part, step, message = record.exit.part, record.exit.step, record.exit.message or record.exit.code
    where: Statement = fact("whole.in-part", part=part) if part else ""
    if step:
        where = fact("whole.in-step-of-part", part=part, step=step) if part else fact("whole.in-step", step=step)
    detail = fact("whole.failed", side=side, where=where, message=message)
    return Finding(
        check="record.exit", outcome=outcome, metric="exit", observed=record.exit.code or record.exit.status,
        limit="completed", detail=detail,
    )  # fmt: skip


def unequal_evidence(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[tuple[str, Finding]]:
    """Yield (side, finding) for each item that one record lacks.

    The side that lacks it is `reference`, `candidate`, or `either` if the records do not show which one.
    """
    left, right = reference.record, candidate.record
    if captured(left.spec):
        # Its steps may be recorded at other places.
        yield from ((side, gap.finding(side)) for side, gap in one_sided(left, right))
        return
    yield from unequal_taps(left.evidence, right.evidence)
    yield from unequal_rows(reference, candidate)
    yield from (("candidate", gap.finding("candidate")) for gap in lost_proofs(left, right))


def unequal_rows(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[tuple[str, Finding]]:
    """Yield (side, finding) if records of one dataset contain different rows.

    Different batches explain different rows: their rung names the cause. The records do not show which one is wrong.
    """
    left, right = reference.record.evidence.data, candidate.record.evidence.data
    if left is None or right is None:
        return
    ours, theirs = reference.rows, candidate.rows
    ids, others = (side.get("row_id", np.zeros(0, np.int64)) for side in (ours, theirs))
    invalid = Finding(check="data.rows", outcome="invalid")
    if not np.array_equal(ids, others):
        same_dataset = left.manifest_sha256 == right.manifest_sha256 or left.shards == right.shards
        if same_dataset and _reads_equal_rows(reference.record, candidate.record):
            shared = len(np.intersect1d(ids, others))
            detail = fact("rows.shared", num=shared, total=len(ids))
            yield "either", invalid.replace(metric="rows", observed=shared, limit=len(ids), detail=detail)
        return
    same = len(ids) == 0 or all(np.array_equal(ours[name], theirs[name]) for name in ("text", "label"))
    if same != (left.rows_sha256 == right.rows_sha256):
        detail = fact("rows.contradict", state=fact("rows.equal") if same else fact("rows.different"))
        yield "either", invalid.replace(metric=fact("rows.digest"), detail=detail)


def _reads_equal_rows(left: RunRecord, right: RunRecord) -> bool:
    """Return whether both trainings' batches contain the same rows."""
    probes, curves = ([side.evidence.probe for side in (left, right)], [side.evidence.learn for side in (left, right)])
    read = [probe.batches.get("row_ids") for probe in probes if probe is not None]
    logged = [curve.batches for curve in curves if curve is not None]
    return (len(read) < 2 or read[0] == read[1]) and (len(logged) < 2 or logged[0] == logged[1])
