"""Rung 2 of the evidence ladder: tokenizer files and resulting tokens.

A file may be rewritten without a different token, such as with its keys in a different order. Such a file is a note.
Different tokens of the same rows are a drift wherever a run reads them: in the probe's batches, in its evaluation, or
in the learning curve.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.evaluation import evaluation_numbers
from plumbline.schema.fact import fact
from plumbline.schema.tolerance import relative
from plumbline.schema.verdict import Divergence, Finding

TOKENS = ("input_ids", "attention_mask", "token_type_ids")


def tokenizer(pair: Pair) -> Mismatch | None:
    """Return a mismatch if tokenizer files and resulting tokens differ."""
    left, right = pair.reference.record.evidence.data, pair.candidate.record.evidence.data
    if left is None or right is None or left.tokenizer_sha256 == right.tokenizer_sha256:
        return None
    names: tuple[str, ...] = ()
    if not _same_batches(pair):
        where, names = fact("tokenizer.in-batches"), TOKENS
    elif _evaluated_otherwise(pair):
        where = fact("tokenizer.in-evaluation")
    elif not _same_curve(pair):
        where = fact("tokenizer.in-curve")
    else:
        return None
    finding = Finding(
        check="data.tokenizer",
        outcome="drift",
        metric=fact("tokenizer.digest"),
        observed=right.tokenizer_sha256,
        limit=left.tokenizer_sha256,
        detail=fact("tokenizer.where", where=where),
    )
    why = fact("tokenizer.file")
    evidence = (
        fact("tokenizer.name", digest=right.tokenizer_sha256[:12]),
        fact("tokenizer.where", where=where),
    )
    return Mismatch(
        rung="data",
        at=Divergence(stage="data", at="tokenizer"),
        findings=(finding,),
        suspicions=(Suspicion("tokenization", why, evidence, names),),
        basis="given",
    )


def _same_batches(pair: Pair) -> bool:
    """Return whether both probe runs read equal tokens."""
    differing = [
        step
        for step, (left, right) in enumerate(pair.common)
        if any(left.batch.get(name) != right.batch.get(name) for name in TOKENS)
    ]
    if not differing:
        return True
    if not pair.reference.record.spec.has_row_labels:  # hidden tokens: ids depend on the draw of the mask too
        return False
    ours, theirs = (dict(_rows(side.batches)) for side in (pair.reference, pair.candidate))
    shared = (ours.keys() & theirs.keys()) - _edited(pair)
    return bool(shared) and all(ours[row] == theirs[row] for row in shared)


def _rows(batches: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
    """Yield (row, token bytes) of all batches."""
    if not all(name in batches for name in ("row_ids", *TOKENS)):
        return
    for step, rows in enumerate(batches["row_ids"]):
        for place, row in enumerate(rows):
            yield int(row), np.concatenate([batches[name][step][place] for name in TOKENS]).astype(np.int64).tobytes()


def _edited(pair: Pair) -> frozenset[int]:
    """Return the ids of rows with different texts."""
    left, right = pair.reference.rows, pair.candidate.rows
    if not left or not right:
        return frozenset()
    ids, ours, theirs = np.intersect1d(left["row_id"], right["row_id"], assume_unique=True, return_indices=True)
    return frozenset(int(row) for row in ids[left["text"][ours] != right["text"][theirs]])


def _evaluated_otherwise(pair: Pair) -> bool:
    """Return whether only the evaluation differs, although training was equal."""
    if pair.probes is None or "evaluation" in pair.imposed:
        return False
    ours, theirs = (probe.evaluation for probe in pair.probes)
    if ours is None or theirs is None or ours.logits_sha256 == theirs.logits_sha256:
        return False
    if (ours.rows_sha256, ours.training_mode) != (theirs.rows_sha256, theirs.training_mode):
        return False  # the evaluation itself differs, whatever it reads
    last = pair.common[-1] if pair.common else None
    if last is not None and last[0].weights_sha256 == last[1].weights_sha256:
        return True
    alike = all(relative(a.loss, b.loss) <= pair.loss_limit(step) for step, (a, b) in enumerate(pair.common))
    return alike and evaluation_numbers(pair) is not None


def _same_curve(pair: Pair) -> bool:
    """Return whether both learning curves read equal batches."""
    ours, theirs = (side.record.evidence.learn for side in (pair.reference, pair.candidate))
    if ours is None or theirs is None:
        return True
    if ours.batches and theirs.batches:
        return ours.batches == theirs.batches
    return ours.losses == theirs.losses
