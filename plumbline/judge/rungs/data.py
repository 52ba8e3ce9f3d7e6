"""Rung of the data: the dataset rows read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.mismatches import Mismatch, Suspicion, differs
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.batch import TOKENS
from plumbline.judge.spec_differences import label_names
from plumbline.schema import limits
from plumbline.schema.evidence import DataEvidence
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.verdict import CauseCode, Divergence

_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Rows:
    """Dataset rows that both runs read, with their differences."""

    ids: NDArray[np.int64]
    text: NDArray[np.bool_]
    label: NDArray[np.bool_]
    moved: bool
    """Whether the different rows are the reference's own rows in different places."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """Dataset row with a text or label that differs between two runs."""

    row: int
    is_text: bool
    before: str
    after: str

    @property
    def statement(self) -> Statement:
        """Describe the row and how the two versions differ."""
        if self.before == self.after:
            return fact("data.changed-text", row=self.row)
        code = "data.changed-both" if self.is_text else "data.changed-label"
        return fact(code, row=self.row, before=self.before, after=self.after)


def row_changes(pair: Pair) -> tuple[RowChange, ...]:
    """Return the first rows that both runs read with different content."""
    rows = _compare_rows(pair)
    if rows is None:
        return ()
    sides = (pair.reference, pair.candidate)
    names = [label_names(side.record.spec) for side in sides]
    changes = []
    for row in rows.ids[rows.text | rows.label][:_NAMED].tolist():
        place = [int(np.searchsorted(side.rows["row_id"], row)) for side in sides]
        labels = [int(side.rows["label"][at]) for side, at in zip(sides, place, strict=True)]
        before, after = (own.get(label, f"{label:x}") for own, label in zip(names, labels, strict=True))
        is_text = bool(rows.text[np.searchsorted(rows.ids, row)])
        changes.append(RowChange(row, is_text, before, after))
    return tuple(changes)


def data(pair: Pair) -> list[Mismatch]:
    """Return the mismatches of dataset content, labels and order."""
    left, right = pair.reference.record.evidence.data, pair.candidate.record.evidence.data
    if left is None or right is None:
        return []
    return _rows_break(pair, left, right)


def _rows_break(pair: Pair, left: DataEvidence, right: DataEvidence) -> list[Mismatch]:
    if left.manifest_sha256 == right.manifest_sha256 and left.rows_sha256 == right.rows_sha256:
        return []
    rows = _compare_rows(pair)
    if rows is not None and (rows.text.any() or rows.label.any()):
        return [_differing(pair, left, right, rows)]
    divisions = [[shard.num_rows for shard in side.shards] for side in (left, right)]
    sizes = list(map(sum, divisions))
    unread = rows is None or right.num_rows < sizes[1]
    if left.manifest_sha256 == right.manifest_sha256 or (sizes[0] == sizes[1] and not unread):
        return []
    pairs = list(zip(left.shards, right.shards, strict=False))
    other = next((theirs.key for ours, theirs in pairs if not theirs.holds_the_rows_of(ours)), None)
    longer = max(left.shards, right.shards, key=len)
    if other is None and len(longer) == len(pairs):
        return []
    shard = other or longer[len(pairs)].key
    where = fact("data.unread") if rows is not None else fact("data.unrecorded")
    is_divided = sizes[0] == sizes[1] and divisions[0] != divisions[1]
    if is_divided and any(ours.batch.get("row_ids") != theirs.batch.get("row_ids") for ours, theirs in pair.common):
        return []  # the batches show that these rows are read in a different order, and nothing shows other rows
    why = fact("data.divided", where=where) if is_divided else fact("data.differs", where=where)
    return [_break("data.content", why, left, right, at=f"shard {shard}")]


def _compare_rows(pair: Pair) -> _Rows | None:
    left, right = pair.reference.rows, pair.candidate.rows
    if not left or not right:
        return None
    ids, at_left, at_right = np.intersect1d(left["row_id"], right["row_id"], assume_unique=True, return_indices=True)
    text = left["text"][at_left] != right["text"][at_right]
    label = left["label"][at_left] != right["label"][at_right]
    moved = _is_moved(left, right, at_left[text], at_right[text]) or _is_permuted(pair, at_right[text])
    return _Rows(ids, text, label, moved)


def _is_moved(left: dict[str, Any], right: dict[str, Any], at_left: Any, at_right: Any) -> bool:
    """Return whether the different rows are the reference's rows in another order."""
    ours = Counter(zip(left["text"][at_left].tolist(), left["label"][at_left].tolist(), strict=True))
    theirs = Counter(zip(right["text"][at_right].tolist(), right["label"][at_right].tolist(), strict=True))
    return bool(ours) and (ours & theirs).total() == ours.total()


def _is_permuted(pair: Pair, at_right: Any) -> bool:
    """Return whether the rows look like a shuffled copy of the dataset.

    A run reads only a part of the dataset. So the reference read the same part of the rows that moved.
    """
    left, right = pair.reference.rows, pair.candidate.rows
    sides = (pair.reference.record.evidence.data, pair.candidate.record.evidence.data)
    total = sum(shard.num_rows for shard in sides[0].shards) if sides[0] else 0
    expected = len(at_right) * len(left["text"]) / total if total else 0.0
    if expected < limits.MIN_EXPECTED:
        return False
    ours, theirs = (Counter(zip(side["text"].tolist(), side["label"].tolist(), strict=True)) for side in (left, right))
    texts = {text for text, _ in ours}
    moved = list(zip(right["text"][at_right].tolist(), right["label"][at_right].tolist(), strict=True))
    found = sum(row in ours for row in moved)
    if found < limits.LABELS_FOLLOW * sum(text in texts for text, _ in moved):
        return False  # the texts stand at different labels: these are different rows
    copies = [side.total() - len(side) for side in (ours, theirs)]
    return found >= limits.MOST * expected and copies[1] - copies[0] <= limits.COPIES * found


def _differing(pair: Pair, left: DataEvidence, right: DataEvidence, rows: _Rows) -> Mismatch:
    totals = [sum(shard.num_rows for shard in side.shards) for side in (left, right)]
    lists = [[shard.sha256 for shard in side.shards] for side in (left, right)]
    # Identical lists mean no reordering: the rows were edited after the manifest was written.
    is_reordered = lists[0] != lists[1] and sorted(lists[0]) == sorted(lists[1])
    which = rows.ids[rows.text | rows.label]
    step, row = _first_read(pair, which)
    at = _place(left, row)
    numbers = ", ".join(map(str, which[:_NAMED].tolist())) + (", …" if len(which) > _NAMED else "")
    seen = fact("data.rows", num=len(which), total=len(rows.ids), numbers=numbers)
    if not rows.text.any():
        code, why = "data.labels", fact("data.labels", num=len(which))
    elif totals[0] == totals[1] and (is_reordered or rows.moved):
        code, why = "data.order", fact("data.order")
    else:
        changed = fact("data.one-row") if len(which) == 1 else fact("data.some-rows", num=len(which))
        change = changed if totals[0] == totals[1] else fact("data.num-rows", num=totals[1], reference=totals[0])
        code, why = "data.content", fact("data.different-rows", change=change)
    # Moved rows have different labels by chance.
    first = () if code == "data.order" else row_changes(pair)
    changes = tuple(change.statement for change in first if change.before != change.after)
    share = len(which) / len(rows.ids)
    return _break(code, why, left, right, at=at, row=row, step=step, seen=seen, share=share, changes=changes)  # type: ignore[arg-type]


def _first_read(pair: Pair, which: NDArray[np.int64]) -> tuple[int | None, int]:
    """Return (step, row) of the first different row that was read."""
    read = pair.candidate.batches.get("row_ids")
    if read is not None:
        hit = np.isin(read, which)
        if hit.any():
            step, place = (int(index) for index in np.argwhere(hit)[0])
            return step, int(read[step, place])
    return None, int(which[0])


def _place(side: DataEvidence, row: int) -> str:
    start = 0
    for shard in side.shards:
        if row < start + shard.num_rows:
            return f"shard {shard.key} row {row - start}"
        start += shard.num_rows
    return f"row {row}"


_FIELDS: dict[CauseCode, tuple[str, ...]] = {
    "data.labels": ("labels",),
    "data.content": (*TOKENS, "labels"),
    "data.order": ("row_ids", *TOKENS, "labels"),
}


def _break(
    code: CauseCode,
    why: Statement,
    left: DataEvidence,
    right: DataEvidence,
    *,
    at: str,
    row: int | None = None,
    step: int | None = None,
    seen: Statement = "",
    share: float | None = None,
    changes: tuple[Statement, ...] = (),
) -> Mismatch:
    imports = right.receipt.differences(left.receipt) if right.receipt else ()
    evidence = (
        fact("data.first-at", at=at),
        *((seen,) if seen else ()),
        *changes,
        *(fact("data.import", difference=text) for text in imports),
    )
    # A dataset of a different length changes every draw of rows.
    longer = sum(s.num_rows for s in left.shards) != sum(s.num_rows for s in right.shards)
    fields = ("row_ids", *_FIELDS[code]) if longer else _FIELDS[code]
    place, detail = Divergence(stage="data", step=step, at=at, row=row), joined((fact("data.first-at", at=at), seen))
    numbers: tuple[Statement, float | str, float | str] = (
        fact("data.manifest-digest"), right.manifest_sha256, left.manifest_sha256
    )  # fmt: skip
    metric, observed, limit = numbers if share is None else (fact("data.share"), share, 0.0)
    suspicion = Suspicion(code, why, evidence, fields)
    return differs(place, "data.rows", metric, suspicion, observed=observed, limit=limit, detail=detail)
