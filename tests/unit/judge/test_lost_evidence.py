"""Lost evidence: a drifted record that lost any part of its evidence never passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord

from .conftest import other_kernel
from .made_records import Content, edit, whole
from .test_speed_windows import checked_speed

PARTS = ("probe", "speed", "learn")
_HEAD = {"stage": "forward", "name": "head", "kind": "Linear", "dtype": "float32", "terms": 16, "error": 4.0}
_NORM = {**_HEAD, "name": "layer.norm", "kind": "LayerNorm"}
_DRAWS = {"name": "head", "rate": 0.1, "calls": 1, "elements": 100_000, "kept": 90_000}
_NUM_VISITED = 4
"""Longest list of which each entry is lost in turn; of a longer one the first and the last."""


def honest(content: Content) -> None:
    """Give each part two proofs, as on any machine."""
    for part in PARTS:
        errors = [{**each, "stage": stage} for stage in ("forward", "gradient") for each in (_NORM, _HEAD)]
        proof = {"errors": errors, "tensors": 4, "draws": [_DRAWS] if part != "probe" else []}
        content["evidence"][part]["proofs"] = [{**copy.deepcopy(proof), "step": step} for step in (0, 3)]


DRIFTS: dict[str, tuple[str, Callable[[Content], Any]]] = {
    **{f"proof of {part}": (part, lambda evidence: _error(evidence, 1).update(error=1e5)) for part in PARTS},
    "proof that is not finite": ("learn", lambda evidence: _error(evidence, 0).update(error=None)),
    "draws": ("learn", lambda evidence: evidence["proofs"][1]["draws"][0].update(kept=95_000)),
    "rate": ("speed", lambda evidence: evidence["proofs"][1]["draws"][0].update(rate=0.3, kept=70_000)),
    "calls": ("speed", lambda evidence: evidence["proofs"][0]["draws"][0].update(calls=2)),
    "window of learn": ("learn", lambda evidence: _window(evidence).update(gradients=[["head.weight", "f" * 16]])),
    "window of speed": ("speed", lambda evidence: _window(evidence).update(outputs=[["head", "f" * 16]])),
    "formula": ("speed", lambda evidence: evidence["production"].update(formula=[["forward logits", 1e-2]])),
    "rates": ("learn", lambda evidence: evidence.update(learning_rates=[1e-3] * 7 + [5e-4])),
    "batches": ("learn", lambda evidence: evidence["batches"].update(labels=["f" * 16] * 8)),
}
"""By name: the part whose evidence alone shows a drift, and the change of that evidence."""


def _error(evidence: Content, proof: int) -> Content:
    return evidence["proofs"][proof]["errors"][1]  # type: ignore[no-any-return]


def _window(evidence: Content) -> Content:
    return evidence["portable"]["windows"][1]  # type: ignore[no-any-return]


def losses(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield (path, value left) of each key, entry or list that a record may lose; `...` removes a key."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key), ...
            yield from losses(inner, (*path, key))
    elif isinstance(value, (list, tuple)) and value:
        yield path, []
        for index in {0, len(value) - 1} if len(value) > _NUM_VISITED else range(len(value)):
            yield path, [*value[:index], *value[index + 1 :]]
            yield from losses(value[index], (*path, index))
    elif value is not None:
        yield path, None


def _without(evidence: Content, path: tuple[Any, ...], left: Any) -> Content:
    """Return a copy of the evidence that shares all but the path."""
    if not path:
        return left  # type: ignore[no-any-return]
    changed: Any = dict(evidence) if isinstance(evidence, dict) else list(evidence)
    if len(path) == 1 and left is ...:
        del changed[path[0]]
    else:
        changed[path[0]] = _without(changed[path[0]], path[1:], left)
    return changed  # type: ignore[no-any-return]


def lossy(made: LoadedRecord, part: str) -> Iterator[tuple[str, LoadedRecord]]:
    """Yield (path, copy) of a record with each loss in a part's evidence that is still a record."""
    content = made.record.model_dump()
    for path, left in losses(content["evidence"][part], (part,)):
        try:
            record = RunRecord.model_validate({**content, "evidence": _without(content["evidence"], path, left)})
        except ValidationError:
            continue
        if record.evidence != made.record.evidence:
            yield ".".join(map(str, path)), LoadedRecord(record, made.folder, made.arrays)


@pytest.mark.first(5)
@pytest.mark.parametrize("drift", DRIFTS)
def test_a_drift_is_no_pass_without_any_part_of_its_evidence(drift: str) -> None:
    part, change = DRIFTS[drift]
    reference = whole(checked_speed(), honest)
    found = edit(reference, lambda content: change(content["evidence"][part]))
    equal, found = (moved(each) for each in (reference, found))
    assert compare(reference, equal, throughput=False).verdict == "pass"
    assert compare(reference, found, throughput=False).verdict == "drift"
    for path, lost in lossy(found, part):
        assert compare(reference, lost, throughput=False).verdict != "pass", path


def moved(made: LoadedRecord) -> LoadedRecord:
    """Return the record as that of a machine with other kernels."""
    return edit(made, lambda content: content["fingerprint"].update(other_kernel()))
