"""Rung of the batches: each batch of any part, field by field."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.mismatches import Mismatch, Suspicion, differs, of_log
from plumbline.judge.pair import Pair, apart, log_of
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.fact import Statement, fact
from plumbline.schema.sketch import marks_of
from plumbline.schema.spec import PartName
from plumbline.schema.step_log import LoggedStep, StepLog
from plumbline.schema.task import draws_labels
from plumbline.schema.verdict import CauseCode, Divergence

_HIDDEN = -100
TOKENS = ("input_ids", "attention_mask", "token_type_ids")


def batch(
    pair: Pair, step: int, known: frozenset[str] = frozenset(), part: PartName = "probe"
) -> Mismatch | None:  # fmt: skip
    """Return the mismatch of the batch at `step`, ignoring fields in `known`."""
    if part != "probe":
        return _of_marks(pair.at(part, step), part, masked=draws_labels(pair.reference.record.spec.task))
    left, right = (side.batch for side in pair.common[step])
    names = [*BATCH_FIELDS, *sorted((set(left) | set(right)) - set(BATCH_FIELDS))]
    differing = tuple(name for name in names if left.get(name) != right.get(name) and name not in known)
    if not differing:
        return None
    arrays = [
        {name: side.batches[name][step] for name in names if name in side.batches}
        for side in (pair.reference, pair.candidate)
    ]
    suspicion = _suspicion(pair, differing, arrays[0], arrays[1])
    row, at = _row(arrays[0], arrays[1], differing)
    place = Divergence(stage="batch", step=step, at=at or differing[0], row=row)
    clause = fact("batch.first-at", at=at) if at else ""
    observed, limit = right.get(differing[0]), left.get(differing[0])
    detail = fact("batch.detail", why=suspicion.why, clause=clause)
    metric = fact("batch.digest", field=differing[0], step=step)
    return differs(place, "probe.batch", metric, suspicion, observed=observed, limit=limit, detail=detail)


def _of_marks(sides: tuple[LoggedStep, LoggedStep], part: PartName, *, masked: bool) -> Mismatch | None:
    """Return the mismatch of a batch whose values no record holds."""
    left, right = sides
    if None not in (left.num_rows, right.num_rows) and left.num_rows != right.num_rows:
        why = fact("batch.num-rows", num=right.num_rows, reference=left.num_rows)
        return of_log(part, Divergence(stage="batch", step=left.step, at="row_ids"), "data.order", why, shown=True)
    names = (name for name in BATCH_FIELDS if name in left.batch and name in right.batch)
    fields = tuple(name for name in names if left.batch[name] != right.batch[name])
    if not fields:
        return None
    why, code = fact("log.fields", fields=", ".join(fields)), code_of_fields(fields, masked=masked)
    return of_log(part, Divergence(stage="batch", step=left.step, at=fields[0]), code, why, shown=True)


def batches_of_probe(side: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return the first batch of a part that is not that of the record's own probe."""
    spec, batches, log = side.record.spec, side.batches, log_of(side, part)
    if spec.speed is None or not batches or log is None:
        return None
    steps = min(len(log.num_rows), spec.speed.steps, *(len(values) for values in batches.values()))
    rows = [len(values) for values in batches["row_ids"][:steps]] if "row_ids" in batches else [spec.batch_size] * steps
    marks = marks_of({name: values[:steps] for name, values in batches.items()})
    known = StepLog(num_rows=tuple(rows), batches={name: tuple(values) for name, values in marks.items()})
    places = apart(known, log, "num_rows", "batches")
    found = (_of_marks((known.at(step), log.at(step)), part, masked=draws_labels(spec.task)) for step in places)
    return next(filter(None, found), None)


def code_of_fields(differing: Collection[str], *, masked: bool) -> CauseCode:
    """Return the likely cause of different batch digests without recorded values.

    Random masking changes ids and labels, never lengths or segments.
    """
    if "row_ids" in differing:
        return "data.order"
    if set(differing) <= {"labels"}:
        return "data.labels"
    return "rng" if masked and set(differing) == {"input_ids", "labels"} else "tokenization"


def _suspicion(pair: Pair, differing: tuple[str, ...], left: Any, right: Any) -> Suspicion:
    evidence: tuple[Statement, ...] = (fact("batch.fields", differing=", ".join(differing)),)
    if "row_ids" in differing:
        return Suspicion("data.order", _order(left, right), evidence, BATCH_FIELDS)
    masked = draws_labels(pair.reference.record.spec.task)
    if masked and set(differing) <= {"labels"} and not _same_places(left, right):
        why = fact("batch.mask-places")
        return Suspicion("rng", why, evidence, (*TOKENS, "labels"))
    if set(differing) <= {"labels"}:
        return Suspicion("data.labels", fact("batch.labels"), evidence, ("labels",))
    if masked and _same_below_the_mask(left, right):
        why = fact("batch.mask-tokens")
        return Suspicion("rng", why, evidence, (*TOKENS, "labels"))
    shapes = {name: (left[name].shape, right[name].shape) for name in TOKENS if name in left and name in right}
    padded = next((pair for pair in shapes.values() if pair[0] != pair[1]), None)
    why = fact("batch.padding", length=padded[1], reference=padded[0]) if padded else fact("batch.ids")
    files = [data.tokenizer_sha256 for side in (pair.reference, pair.candidate) if (data := side.record.evidence.data)]
    evidence = (*evidence, fact("batch.tokenizer", digest=files[1][:12])) if len({*files}) > 1 else evidence
    # All fields of a tokenizer are restored: a further field may differ at a later step only.
    names = (*TOKENS, "labels") if "labels" in differing else TOKENS
    return Suspicion("tokenization", why, evidence, names)


def _order(left: Any, right: Any) -> Statement:
    if "row_ids" not in left or "row_ids" not in right:
        return fact("batch.rows-or-order")
    ours, theirs = left["row_ids"], right["row_ids"]
    if len(theirs) != len(ours):
        return fact("batch.num-rows", num=len(theirs), reference=len(ours))
    twice = [int(row) for row in np.unique(theirs) if (theirs == row).sum() > (ours == row).sum() > 0]
    if twice:
        return fact("batch.repeated-row", row=twice[0])
    if sorted(ours.tolist()) == sorted(theirs.tolist()):
        return fact("batch.order")
    return fact("batch.rows", num=int((~np.isin(theirs, ours)).sum()), total=len(theirs))


def _same_places(left: Any, right: Any) -> bool:
    """Return whether both batches have labels at the same token positions."""
    if "labels" not in left or "labels" not in right:
        return True
    return _same(left["labels"] != _HIDDEN, right["labels"] != _HIDDEN)


def _same_below_the_mask(left: Any, right: Any) -> bool:
    if not all(name in side for side in (left, right) for name in ("input_ids", "labels")):
        return False
    return _same(_unmasked(left), _unmasked(right))


def _unmasked(side: Any) -> NDArray[Any]:
    return np.asarray(np.where(side["labels"] == _HIDDEN, side["input_ids"], side["labels"]))


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Return whether two arrays are equal in shape and values."""
    return left.shape == right.shape and bool((left == right).all())


def _row(left: Any, right: Any, differing: tuple[str, ...]) -> tuple[int | None, str]:
    """Return the first different dataset row, and its field."""
    for name in differing:
        if name not in left or name not in right:
            continue
        ours, theirs = left[name], right[name]
        count = min(len(ours), len(theirs))
        if ours.shape[1:] != theirs.shape[1:]:
            place = 0
        else:
            unequal = np.argwhere(ours[:count] != theirs[:count])
            place = int(unequal[0][0]) if len(unequal) else count
        rows = right.get("row_ids")
        row = int(rows[place]) if rows is not None and place < len(rows) else None
        return row, f"{name} of batch row {place}"
    return None, ""
