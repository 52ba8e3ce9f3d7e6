"""The first step that exact evidence shows, and the module that a proof or window shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.report.sentences import spoken
from plumbline.schema.verdict import Judgement

from .conftest import other_kernel
from .made_records import Content, codes, edit, whole
from .test_speed_windows import checked_speed

_PART = {"probe": "fp32", "speed": "bf16", "learn": "fp32"}
_RIGHT = {"stage": "gradient", "name": "layer.linear.weight", "dtype": "float32", "terms": 16, "error": 1.0}


def proven(part: str, step: int, *errors: Content) -> LoadedRecord:
    """Return a record whose proofs of a part list these errors at step 0 and at `step`, where the last is too large."""
    wrong = {**errors[-1], "error": 2e4}

    def change(content: Content) -> None:
        listed = ((0, errors), (step, (*errors[:-1], wrong)))
        content["evidence"][part]["proofs"] = [
            {"step": at, "errors": list(each), "tensors": len(each)} for at, each in listed
        ]
        content["evidence"]["model"]["modules"] = [*content["evidence"]["model"]["modules"], ("layer", "Block()")]

    return whole(checked_speed(), change)


def judged(found: LoadedRecord, *changes: Any) -> Judgement:
    def without(content: Content) -> None:
        for part in _PART:
            for each in content["evidence"][part]["proofs"]:
                each["errors"] = [error | {"error": 1.0} for error in each["errors"]]

    return compare(edit(found, without), edit(found, *changes), throughput=False)


def place(judgement: Judgement) -> tuple[int | None, str]:
    assert judgement.first_divergence is not None
    return judgement.first_divergence.step, judgement.first_divergence.at


@pytest.mark.parametrize(("stage", "step"), [("forward", 5), ("gradient", 4), ("optimizer", 4)])
def test_a_drawn_proof_names_the_module_and_the_log_the_step(stage: str, step: int) -> None:
    def late(content: Content) -> None:
        content["evidence"]["learn"]["losses"] = [0.5] * 5 + [0.6] * 3

    error = _RIGHT | {"stage": stage, "name": "head" if stage == "forward" else "head.weight", "kind": "Linear"}
    found = proven("learn", 7, error)
    assert place(judged(found, late)) == (step, error["name"])
    # Beside different kernels the step of the proof is the first that shows it.
    elsewhere = judged(found, late, lambda content: content["fingerprint"].update(other_kernel()))
    assert place(elsewhere) == (7, error["name"])


@pytest.mark.parametrize("kernel", [{}, other_kernel()])
def test_the_number_of_a_window_behind_the_measured_steps_is_not_said(kernel: Any) -> None:
    found = whole(checked_speed({}, {"weights": [["head.weight", "f" * 16]]}), fingerprint=kernel)
    judgement = compare(whole(checked_speed()), found, throughput=False)
    assert (place(judgement), codes(judgement)) == ((None, "head.weight"), ["optimizer"])
    assert "214" not in json.dumps(spoken(judgement.to_json()))


@pytest.mark.parametrize(
    ("kind", "code"), [("LayerNorm", "operator"), ("Linear", "precision"), ("BertSelfAttention", "operator")]
)
def test_a_wrong_kernel_is_precision_only_by_its_own_operators(kind: str, code: str) -> None:
    bits = {"linear": 10, "layer_norm": 23, "attention": 23, "attention scores": 10}
    kept = {f"learn.{name}": num for name, num in bits.items()}
    found = proven("learn", 7, _RIGHT | {"stage": "forward", "name": "head", "kind": kind})
    judgement = judged(edit(found, lambda content: content["fingerprint"].update(mantissa_bits=kept)))
    assert (judgement.verdict, codes(judgement)) == ("drift", [code])


@pytest.mark.parametrize(("dtype", "sure"), [("float32", "confirmed"), ("bfloat16", "likely")])
def test_a_gradient_that_its_own_module_computes_rightly_is_of_the_block_behind(dtype: str, sure: str) -> None:
    """In half precision a wrong output may lie within its limit: the gradient alone confirms nothing."""
    own, block = ({**_RIGHT, "kind": kind, "dtype": dtype} for kind in ("Linear", "Block"))
    judgement = judged(proven("learn", 7, own, block))
    assert (place(judgement), codes(judgement)) == ((7, "layer"), ["gradient"])
    assert judgement.causes[0].sure == sure


def test_the_loss_of_a_compiled_model_comes_before_the_gradients_that_follow_from_it() -> None:
    kernels = [{"stage": "gradient", "name": "head.weight", "error": 0.5, "eager": 4e-3}]
    compiled = whole(checked_speed(kernels=kernels))
    errors = [_RIGHT | {"stage": "loss", "name": "loss", "kind": "Bert", "error": 2e4}]
    proofs = [{"step": 0, "errors": errors, "tensors": 1}, {"step": 9, "errors": errors, "tensors": 1}]
    found = edit(compiled, lambda content: content["evidence"]["speed"].update(proofs=proofs))
    judgement = compare(whole(checked_speed()), found, throughput=False)
    assert (place(judgement)[1], codes(judgement)) == ("loss", ["loss"])
