"""Numbers of an evaluation that the rounding of its logits can change, row by row; `docs/MATH.md` derives them.

In classification a row's logits are those of its classes, and its prediction is a class. In masked language modelling a
row keeps one number, the mean log-probability of its hidden tokens, and its prediction is the number of correct tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline import limits
from plumbline.judge.pair import Pair
from plumbline.judge.tolerance import UNIT


def loss_reach(pair: Pair) -> float:
    """Return the maximum change of the mean loss by the difference of the logits; infinite without them."""
    both = _rows(pair, "logits")
    if both is None:
        return math.inf
    left, right = (rows.astype(np.float64) for rows in both)
    if not len(left):
        return 0.0
    change = np.linalg.norm(right - left, axis=1)
    # A row's kept log-probability is its loss, weighted by its number of tokens; cross entropy has a slope of √2.
    return float(change.max() if _is_masked(pair) else math.sqrt(2) * change.mean())


def changed_answers(pair: Pair, limit: float) -> float | None:
    """Return the maximum change of the accuracy; `None` if predictions differ beyond the rounding of the logits.

    `limit` is the maximum relative rounding of the logits.
    """
    predicted, logits = _rows(pair, "predictions"), _rows(pair, "logits")
    if predicted is None or logits is None:
        return None
    if _is_masked(pair):
        return _changed_tokens(pair, predicted, limit)
    differing = predicted[0] != predicted[1]
    if not all(
        _may_change(rows, logits, predicted, place) for place in np.flatnonzero(differing).tolist() for rows in (0, 1)
    ):
        return None
    return float(differing.mean()) if len(differing) else 0.0


def _may_change(side: int, logits: Any, predicted: Any, place: int) -> bool:
    """Return whether a row's margin between both predictions is within the difference of its logits."""
    own, other = predicted[side][place], predicted[1 - side][place]
    row = logits[side][place].astype(np.float64)
    if not all(0 <= answer < len(row) for answer in (own, other)):
        return False
    difference = np.linalg.norm(row - logits[1 - side][place].astype(np.float64))
    stored = UNIT["fp32"] * float(np.abs(row).max())
    return bool(row[own] - row[other] <= math.sqrt(2) * difference + 2 * stored)


def _changed_tokens(pair: Pair, predicted: tuple[NDArray[Any], NDArray[Any]], limit: float) -> float | None:
    """Return the change of the accuracy by the changed tokens; `None` if they are more than rounding explains."""
    counts = [int(side.sum()) for side in predicted]
    ends = [side.record.evidence.probe.evaluation for side in (pair.reference, pair.candidate)]  # type: ignore[union-attr]
    accuracies = [end.accuracy if end is not None else None for end in ends]
    # Correct tokens over their share: the number of hidden tokens.
    totals = [count / share for count, share in zip(counts, accuracies, strict=True) if count and share]
    changed = int(np.abs(predicted[0] - predicted[1]).sum())
    if not totals or not changed:
        return 0.0
    return changed / max(totals) if changed <= max(1.0, limits.FLIPS * limit * max(totals)) else None


def _is_masked(pair: Pair) -> bool:
    return not pair.reference.record.spec.has_row_labels


def _rows(pair: Pair, name: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Return both sides' array, row by row; `None` if a record lacks it, or if they are of different shapes."""
    left, right = pair.reference.evaluation.get(name), pair.candidate.evaluation.get(name)
    return (left, right) if left is not None and right is not None and left.shape == right.shape else None
