"""Rungs of outputs and loss: formats, limits, precision and random numbers, each in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.formats import formats
from plumbline.judge.rungs.forward import forward, suspicions
from plumbline.judge.rungs.loss import loss
from plumbline.records import LoadedRecord
from tests.said import said

from .conftest import STEPS
from .rung_numbers import STEP, fingerprint, of_step, scaled
from .rung_records import Change, Content, both, code, generators, side, why

LIMIT = {"forward": 40 * 2.0**-23, "gradient": 400 * 2.0**-23, "optimizer": 400 * 2.0**-23, "loss": 40 * 2.0**-23}


# Outputs.


def test_a_format_that_differs_is_named_by_the_first_module_and_its_stage() -> None:
    plain = side()
    assert both(formats, plain, plain, STEP) == (None, None)
    output = scaled("forward", "layer.norm", dtype="bfloat16")
    late = scaled("gradient", "head.weight", dtype="float16")
    found, other = both(formats, plain, side(output, late, of_step(STEP, logits_dtype="bfloat16")), STEP)
    assert why(found) == "numeric precision differs: layer.norm is bfloat16 instead of float32"
    assert why(other) == "numeric precision differs: layer.norm is float32 instead of bfloat16"
    assert found.suspicions[0].names == ("layer.norm", "head.weight")
    assert said(found.findings[0].detail) == "3 formats differ"
    found, _ = both(formats, plain, side(of_step(STEP, loss_dtype="bfloat16")), STEP)
    assert (found.at.stage, found.at.at) == ("loss", "loss")
    found, _ = both(formats, plain, side(of_step(STEP, loss_dtype="float16", logits_dtype="bfloat16")), STEP)
    assert (found.at.stage, found.at.at) == ("forward", "logits")
    older = fingerprint(packages={"torch": "2.4.0"})
    for precision, is_left_out in (("bf16", True), ("fp16", True), ("tf32", False), ("fp64", False)):

        def asks(content: Content, precision: str = precision) -> None:
            content["spec"]["probe"]["precision"] = precision

        assert (both(formats, side(asks), side(asks, output, older), STEP)[0] is None) is is_left_out
        assert formats(Pair(side(asks), side(asks, output)), STEP) is not None


def test_the_first_output_over_its_limit_is_named() -> None:
    plain = side()
    assert both(forward, plain, plain, STEP) == (None, None)
    small = scaled("forward", "embed", 1 + 1e-7)
    norm, head = scaled("forward", "layer.norm", 1.01), scaled("forward", "head", 1.2)
    found, _ = both(forward, plain, side(small, norm, head), STEP)
    assert (found.at.at, said(found.findings[0].detail)) == ("layer.norm", "2 modules over their limits")
    assert [each.code for each in found.suspicions] == ["operator", "precision"]
    found, _ = both(forward, plain, side(scaled("forward", "layer.norm", norm=None)), STEP)
    assert found.findings[0].observed is None
    whole = side(lambda c: c["evidence"]["probe"]["taps"][0].update(name="", sha256="e" * 64, norm=None))
    root = side(lambda c: c["evidence"]["probe"]["taps"][0].update(name=""))
    assert "the model's output" in said(both(forward, root, whole, 0)[0].findings[0].metric)


def test_fewer_bits_are_suspected_first_where_linear_products_lost_some() -> None:
    norm, linear = scaled("forward", "layer.norm", 1.01), scaled("forward", "layer.linear", 1.01)

    def likely(*changes: Change, reference: tuple[Change, ...] = ()) -> list[list[str]]:
        found = both(forward, side(*reference), side(*changes), STEP)
        return [[each.code for each in mismatch.suspicions] for mismatch in found]

    first, last = [["precision", "operator"]] * 2, [["operator", "precision"]] * 2
    bits = [fingerprint(mantissa_bits={"linear": count, "conv": 23}) for count in (23, 21, 20)]
    assert likely(linear, bits[2], reference=(bits[0],)) == first
    assert likely(linear, bits[1], reference=(bits[0],)) == last
    assert likely(linear, bits[2]) == last
    assert likely(norm, bits[2], reference=(bits[0],)) == last

    def other_module(content: Content) -> None:
        modules = content["evidence"]["model"]["modules"]
        content["evidence"]["model"]["modules"] = [*modules[:2], ("layer.norm", "LayerNorm(eps=1)"), *modules[3:]]

    found, _ = both(forward, side(), side(norm, other_module), STEP)
    assert "layer.norm: LayerNorm() → LayerNorm(eps=1)" in said(found.suspicions[0].evidence)
    no_model = side(norm, other_module, lambda c: c["evidence"].update(model=None))
    assert len(said(both(forward, side(), no_model, STEP)[0].suspicions[0].evidence)) == 1


def test_random_numbers_are_suspected_where_the_generators_or_the_mode_show_them() -> None:
    norm = scaled("forward", "layer.norm", 1.01)
    plain = side()
    drawn = generators(STEP + 1, torch="e")
    found, _ = both(forward, plain, side(norm, drawn), STEP)
    assert code(found) == "rng"
    assert said(found.suspicions[0].evidence)[1:] == (
        "after step 2 the generators' states differ, before it they did not",
    )
    found, _ = both(forward, plain, side(norm, drawn, generators(STEP, torch="f")), STEP)
    assert code(found) == "operator"
    found, other = both(forward, plain, side(norm, of_step(STEP, is_training=False)), STEP)
    assert said(found.suspicions[0].evidence)[1:] == ("the model is in evaluation mode",)
    assert said(other.suspicions[0].evidence)[1:] == ("the model is in training mode",)
    # At the last step no later state shows a draw.
    end = scaled("forward", "layer.norm", 1.01, step=STEPS - 1)
    assert (
        code(both(forward, plain, side(end, of_step(STEPS - 1, generators={"torch": "e" * 16})), STEPS - 1)[0])
        == "operator"
    )
    found, _ = both(forward, plain, side(end, of_step(STEPS - 1, is_training=False)), STEPS - 1)
    assert said(found.suspicions[0].evidence)[1:] == ("the model is in evaluation mode",)
    found, _ = both(forward, plain, side(scaled("forward", "layer.norm", 1.01, kind="Dropout")), STEP)
    assert code(found) == "operator"
    dropout = [side(scaled("forward", "layer.norm", factor, kind="MyDropout")) for factor in (1.0, 1.01)]
    assert code(both(forward, *dropout, STEP)[0]) == "rng"


def test_random_draws_are_likelier_than_another_operation() -> None:
    norm = scaled("forward", "layer.norm", 1.01)
    found, _ = both(forward, side(), side(norm, of_step(STEP, is_training=False)), STEP)
    assert code(found) == "rng"
    error = Pair(side(), side(norm)).errors(STEP, "forward")[2]
    assert [each.code for each in suspicions(Pair(side(), side(norm)), STEP, error)] == ["operator", "precision"]


# The loss.


def test_a_loss_that_contradicts_its_logits_is_a_cause_unless_both_contradict_them_alike() -> None:
    plain = side()
    true = plain.record.evidence.probe.at(STEP).defined_loss or 0.0  # type: ignore[union-attr]

    def at(factor: float, **changes: Any) -> LoadedRecord:
        return side(of_step(STEP, loss=true * factor, **changes))

    near, half = LIMIT["loss"] / min(true, 1.0), 0.5 * min(true, 1.0)  # a loss below 1 has the limit of 1
    for share, differs in ((0.99, False), (1.01, True), (-0.99, False), (-1.01, True)):
        found, _ = both(loss, plain, at(1 + share * near), STEP)
        assert (found is not None) is differs
    found, other = both(loss, plain, at(1.5), STEP)
    assert (found.findings[0].observed, said(found.findings[0].detail)) == (pytest.approx(half), "")
    assert said(other.findings[0].detail) == "the reference is wrong"
    assert said(found.suspicions[0].evidence) == (f"off by {half:.3g}, the reference by 0",)
    assert both(loss, at(1.5), at(1.5), STEP) == (None, None)
    assert both(loss, at(1.5), at(1.5 * (1 + 0.9 * LIMIT["loss"])), STEP) == (None, None)
    assert both(loss, at(1.5), at(1.5 * (1 + 2 * LIMIT["loss"])), STEP)[0] is not None
    assert both(loss, at(1.5), at(1.2), STEP)[0] is not None
    # Just over the limit on one side only, though close to each other.
    assert both(loss, at(1 + 0.6 * near), at(1 + 1.2 * near), STEP)[0] is not None
    assert both(loss, at(1 + 0.2 * near), at(1 + 0.8 * near), STEP) == (None, None)
    found, _ = both(loss, plain, side(of_step(STEP, loss=None)), STEP)
    assert found.findings[0].observed is None
    found, other = both(loss, plain, at(1.01, loss_dtype="bfloat16"), STEP)
    assert (code(found), why(found)) == ("precision", "the loss is computed in bfloat16 instead of float32")
    assert why(other) == "the loss is computed in float32 instead of bfloat16"
