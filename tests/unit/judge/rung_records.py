"""Records of a plan with changes, and rungs asked in both directions, for the tests of the rungs."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import FIELDS, bits, evaluation_bits
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import LearnEvidence
from plumbline.schema.record import RunRecord
from tests.said import said

from .conftest import STEPS, make_record, set_step

Content = dict[str, Any]
Change = Callable[[Content], None]
STEP = 3


@functools.cache
def _trained(key: str) -> LoadedRecord:
    return make_record(**_plans[key])


_plans: dict[str, Content] = {}


def side(*changes: Change, **plan: Any) -> LoadedRecord:
    """Return the record of a plan, changed afterwards."""
    _plans[repr(plan)] = plan
    made = _trained(repr(plan))
    content = made.record.model_dump() | {"arrays": copy.deepcopy(made.arrays)}
    for change in changes:
        change(content)
    arrays = content.pop("arrays")
    return LoadedRecord(RunRecord.model_validate(content), made.folder, arrays)


def both(rung: Callable[..., Any], left: LoadedRecord, right: LoadedRecord, *arguments: Any) -> tuple[Any, Any]:
    """Return the rung's results with each side as the reference."""
    pairs = Pair(left, right), Pair(right, left)
    return rung(pairs[0], *arguments), rung(pairs[1], *arguments)


def first_bits(pair: Pair) -> Mismatch | None:
    """Return the first different bits of two runs, whatever explains them."""
    places = ((step, rung) for step in range(len(pair.common)) for rung in FIELDS if rung not in pair.imposed)
    found = (bits(pair, step, rung) for step, rung in places)
    evaluated = evaluation_bits(pair) if "evaluation" not in pair.imposed else None
    return next((mismatch for mismatch in found if mismatch is not None), evaluated)


def why(mismatch: Mismatch | None) -> str:
    assert mismatch is not None
    return said(mismatch.suspicions[0].why)


def code(mismatch: Mismatch | None) -> str:
    assert mismatch is not None
    return mismatch.suspicions[0].code


def masked(content: Content) -> None:
    content["spec"]["task"] = "masked-lm"


def with_learn(**changes: Any) -> Change:
    def change(content: Content) -> None:
        content["evidence"]["learn"] = LearnEvidence.model_validate(LEARN | changes).model_dump()

    return change


def log(mark: str, *other: int) -> list[str]:
    """Return a digest for each of six steps, different at the steps of `other`."""
    return [f"{place:x}{('f' if place in other else mark) * 15}" for place in range(STEPS)]


END = {
    "step": 5, "num_rows": 6, "rows_sha256": "a" * 64, "training_mode": False, "predictions_sha256": "b" * 64,
    "logits_sha256": "c" * 64, "loss": 0.5, "accuracy": 0.5,
}  # fmt: skip
BATCHES = {"row_ids": log("b"), "input_ids": log("a"), "labels": log("c")}
LEARN: Content = {
    "steps": STEPS, "losses": [0.7 - 0.01 * step for step in range(STEPS)],
    "weights": [[0, "b" * 16], [STEPS, "a" * 16]],
    "evaluations": [END | {"step": 2}, END], "learning_rates": [1e-3 + 1e-4 * step for step in range(STEPS)],
    "batches": BATCHES, "num_rows": [4] * STEPS, "gradient_norms": [0.5] * STEPS, "dropout": [0.1, 0.25],
    "chance": 0.0,
}  # fmt: skip


def parameters(**changes: Content | None) -> Change:
    """Change parameters by name (`_` for `.`): `None` removes, an unknown name adds."""

    def change(content: Content) -> None:
        model = content["evidence"]["model"]
        given = {name.replace("_", "."): value for name, value in changes.items()}
        known = {each["name"]: each for each in model["parameters"]}
        first = model["parameters"][0]
        known |= {name: known.get(name, first | {"name": name}) | (value or {}) for name, value in given.items()}
        model["parameters"] = [each for name, each in known.items() if given.get(name, {}) is not None]
        model["weights_sha256"] = digest_json([str(each) for each in model["parameters"]])

    return change


def generators(step: int, **states: str) -> Change:
    marks = {name: mark * 16 for name, mark in states.items()}
    return lambda content: set_step(content["evidence"]["probe"], step, {"generators": marks})
