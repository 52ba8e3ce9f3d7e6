"""Completeness of a record's rows: those that it read, and those that it evaluated. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from plumbline.judge.gaps import Gap, counts, lacks
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_array
from plumbline.schema.evidence import DataEvidence, EvaluationEvidence
from plumbline.schema.fact import fact
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import LearnSpec, ProbeSpec
from plumbline.schema.verdict import Finding

_EVALUATION = "evaluation/"
"""Prefix of the keys of a dataset's evaluation shards."""
_MAX_SHARDS_KEPT = 10_000
"""A record of a dataset with more shards names the first ones only."""


def missing_rows(loaded: LoadedRecord) -> Iterator[Gap]:
    """Yield each missing item of the dataset, of the rows read, and of the evaluated rows."""
    record = loaded.record
    data = record.evidence.data
    if data is None:
        if record.evidence.probe is not None or record.evidence.learn is not None:
            yield lacks(
                "data.evidence",
                "inconclusive",
                "evidence",
                fact("gap.data"),
            )
        return
    if not data.shards:
        yield lacks("data.shards", "invalid", "shards", fact("gap.shards"))
    held = len(loaded.rows.get("row_id", ()))
    due = _rows_due(record, data)
    if held != data.num_rows:
        yield counts("data.rows", "rows", held, data.num_rows)
    elif due is not None and held != due:
        yield counts("data.rows", "rows", held, due, role="reference")
    yield from _evaluation_part(loaded)


def _evaluation_part(loaded: LoadedRecord) -> Iterator[Gap]:
    """Yield a gap if the arrays of the probe's evaluation are missing, or are not those of its digests."""
    probe = loaded.record.evidence.probe
    evaluation = probe.evaluation if probe is not None else None
    if evaluation is None:
        return
    digests = {
        "row_ids": evaluation.rows_sha256,
        "predictions": evaluation.predictions_sha256,
        "logits": evaluation.logits_sha256,
    }
    for name, digest in digests.items():
        array = loaded.evaluation.get(name)
        if array is None or not array.ndim or len(array) != evaluation.num_rows:
            held = 0 if array is None or not array.ndim else len(array)
            yield counts("evaluation.part", fact("gap.evaluation-part", name=name), held, evaluation.num_rows)
        elif digest_array(array) != digest:
            text = fact("gap.part-digest", name=name)
            yield lacks("evaluation.part", "invalid", name, text)


def _rows_due(record: RunRecord, data: DataEvidence) -> int | None:
    """Return how many different rows all parts of the spec read; `None` if the shards do not show it."""
    available = _num_evaluation_rows(data)
    if available is None:
        return None
    spec = record.spec
    training = sum(shard.num_rows for shard in data.shards) - available
    steps = max(part.steps for part in (spec.probe, spec.speed, spec.learn) if part)
    evaluated = max((part.evaluation_rows for part in (spec.probe, spec.learn) if part), default=0)
    return min(steps * spec.batch_size, training) + min(evaluated, available)


def missing_evaluation_rows(
    record: RunRecord, evaluation: EvaluationEvidence, spec: ProbeSpec | LearnSpec, part: str
) -> Iterator[Gap]:
    """Yield a gap unless a reference's evaluation has the rows that its spec asks for, or all of a smaller split."""
    data = record.evidence.data
    available = _num_evaluation_rows(data) if data is not None else None
    if available is None and data is not None and len(data.shards) < _MAX_SHARDS_KEPT:
        yield lacks(
            "data.shards",
            "invalid",
            "shards",
            fact("gap.evaluation-shards"),
            role="reference",
        )
        return
    due = spec.evaluation_rows if available is None else min(spec.evaluation_rows, available)
    if evaluation.num_rows != due:
        yield counts(f"{part}.evaluation", fact("gap.evaluation-rows"), evaluation.num_rows, due, role="reference")


def _num_evaluation_rows(data: DataEvidence) -> int | None:
    """Return the number of rows of the evaluation split; `None` if the record does not name all of its shards."""
    if len(data.shards) >= _MAX_SHARDS_KEPT:
        return None
    sizes = [shard.num_rows for shard in data.shards if shard.key.startswith(_EVALUATION)]
    return sum(sizes) if sizes else None


def unequal_rows(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[tuple[str, Finding]]:
    """Yield (side, finding) if two records of one dataset contain different rows, or contradict their digests.

    Different batches explain different rows: their rung names the cause. The records do not show which one is wrong.
    """
    left, right = reference.record.evidence.data, candidate.record.evidence.data
    if left is None or right is None:
        return
    ours, theirs = reference.rows, candidate.rows
    ids, others = (side.get("row_id", np.zeros(0, np.int64)) for side in (ours, theirs))
    if not np.array_equal(ids, others):
        same_dataset = left.manifest_sha256 == right.manifest_sha256 or left.shards == right.shards
        if same_dataset and _reads_equal_rows(reference.record, candidate.record):
            num_shared = len(np.intersect1d(ids, others))
            detail = fact("rows.shared", num=num_shared, total=len(ids))
            yield (
                "either",
                Finding(
                    check="data.rows",
                    outcome="invalid",
                    metric="rows",
                    observed=num_shared,
                    limit=len(ids),
                    detail=detail,
                ),
            )
        return
    same = len(ids) == 0 or all(np.array_equal(ours[name], theirs[name]) for name in ("text", "label"))
    if same != (left.rows_sha256 == right.rows_sha256):
        state = fact("rows.equal") if same else fact("rows.different")
        yield (
            "either",
            Finding(
                check="data.rows",
                outcome="invalid",
                metric=fact("rows.digest"),
                detail=fact("rows.contradict", state=state),
            ),
        )


def _reads_equal_rows(left: RunRecord, right: RunRecord) -> bool:
    """Return whether the batches of two trainings contain the same rows, as far as the records show."""
    probes, curves = ([side.evidence.probe for side in (left, right)], [side.evidence.learn for side in (left, right)])
    read = [[step.batch.get("row_ids") for step in probe.steps] for probe in probes if probe is not None]
    logged = [curve.batches for curve in curves if curve is not None]
    return (len(read) < 2 or read[0] == read[1]) and (len(logged) < 2 or logged[0] == logged[1])
