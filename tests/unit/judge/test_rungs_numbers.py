"""Rungs of the computation: outputs, loss, gradients, updates and portable bits, each in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.digest import digest_json
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.forward import dtypes, forward, forward_numbers, precision_signs, suspicions
from plumbline.judge.rungs.gradient import clipping, frozen, gradient, gradient_numbers
from plumbline.judge.rungs.loss import loss
from plumbline.judge.rungs.optimizer import rate_suspicions, schedule, settings, update, update_numbers
from plumbline.judge.rungs.portable import device, portable, portable_findings, proven_steps, reordered
from plumbline.records import LoadedRecord

from .conftest import PARAMETERS, STEPS
from .kept_verdicts import keep
from .test_rungs import Change, Content, both, code, generators, parameters, side, why

STEP = 2
"""A step whose tensors were sketched."""
LIMIT = {"forward": 40 * 2.0**-23, "gradient": 400 * 2.0**-23, "weight": 400 * 2.0**-23, "loss": 40 * 2.0**-23}


def of_probe(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"].update(changes)


def of_step(step: int, **changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"]["steps"][step].update(changes)


def scaled(stage: str, name: str, factor: float = 1.0, *, step: int = STEP, **changes: Any) -> Change:
    """Scale a sketched tensor, with its norm, and change its entry."""

    def change(content: Content) -> None:
        for place, tap in enumerate(content["evidence"]["probe"]["taps"]):
            if (tap["step"], tap["stage"], tap["name"]) == (step, stage, name):
                tap.update({"norm": tap["norm"] * factor, "sha256": digest_json(str(factor))} | changes)
                content["arrays"]["sketches"]["sketch"][place] *= factor

    return change


def own(name: str, error: float | None, *, stage: str = "forward", step: int = STEP) -> Change:
    """Give a tensor a distance from its own fp64 run."""

    def change(content: Content) -> None:
        probe = content["evidence"]["probe"]
        errors = list(probe["envelope"]["fp64_errors"])
        for place, tap in enumerate(probe["taps"]):
            if (tap["step"], tap["stage"], tap["name"]) == (step, stage, name):
                errors[place] = error
        probe["envelope"]["fp64_errors"] = errors

    return change


def without(stage: str, *names: str, step: int = STEP) -> Change:
    """Lose tensors of a step."""

    def change(content: Content) -> None:
        probe = content["evidence"]["probe"]
        left = [
            place
            for place, tap in enumerate(probe["taps"])
            if (tap["step"], tap["stage"]) != (step, stage) or tap["name"] not in names
        ]
        probe["taps"] = [probe["taps"][place] for place in left]
        content["arrays"]["sketches"]["sketch"] = content["arrays"]["sketches"]["sketch"][left]
        for name in ("errors", "fp64_errors"):
            probe["envelope"][name] = [probe["envelope"][name][place] for place in left]

    return change


def fingerprint(**changes: Any) -> Change:
    return lambda content: content["fingerprint"].update(changes)


# Outputs.


def test_a_format_that_differs_is_named_by_the_first_module_and_its_stage() -> None:
    plain = side()
    assert both(dtypes, plain, plain, STEP) == (None, None)
    output = scaled("forward", "layer.norm", dtype="bfloat16")
    late = scaled("gradient", "head.weight", dtype="float16")
    found, other = both(dtypes, plain, side(output, late, of_step(STEP, logits_dtype="bfloat16")), STEP)
    assert why(found) == "numeric precision differs: layer.norm is bfloat16 instead of float32"
    assert why(other) == "numeric precision differs: layer.norm is float32 instead of bfloat16"
    assert found.suspicions[0].names == ("layer.norm", "head.weight")
    assert found.findings[0].detail == "3 formats differ"
    found, _ = both(dtypes, plain, side(of_step(STEP, loss_dtype="bfloat16")), STEP)
    assert (found.at.stage, found.at.at) == ("loss", "loss")
    found, _ = both(dtypes, plain, side(of_step(STEP, loss_dtype="float16", logits_dtype="bfloat16")), STEP)
    assert (found.at.stage, found.at.at) == ("forward", "logits")
    for precision, is_left_out in (("bf16", True), ("fp16", True), ("tf32", False), ("fp64", False)):

        def asks(content: Content, precision: str = precision) -> None:
            content["spec"]["probe"]["precision"] = precision

        assert (both(dtypes, side(asks), side(asks, output), STEP)[0] is None) is is_left_out


def test_the_first_output_over_its_limit_is_named_and_the_wrong_side_if_known() -> None:
    plain = side()
    assert both(forward, plain, plain, STEP) == (None, None)
    small = scaled("forward", "embed", 1 + 1e-7)
    norm, head = scaled("forward", "layer.norm", 1.01), scaled("forward", "head", 1.2)
    found, _ = both(forward, plain, side(small, norm, head), STEP)
    assert (found.at.at, found.findings[0].detail) == ("layer.norm", "2 modules over their limits")
    assert [each.code for each in found.suspicions] == ["operator", "precision"]
    assert "each run agrees with its own fp64 run" in found.suspicions[0].evidence[-1]
    found, other = both(forward, plain, side(norm, own("layer.norm", 0.005)), STEP)
    assert found.findings[0].detail == "1 modules over their limits; the candidate is wrong"
    assert other.findings[0].detail == "1 modules over their limits; the reference is wrong"
    assert [each.code for each in found.suspicions] == ["precision", "operator"]
    for right in (side(norm, own("layer.norm", None)), side(norm, own("layer.norm", None), own("embed", 0.2))):
        found, _ = both(forward, plain, right, STEP)
        assert found.findings[0].detail == "1 modules over their limits"
        assert len(found.suspicions[0].evidence) == 1
    found, _ = both(forward, plain, side(scaled("forward", "layer.norm", norm=None)), STEP)
    assert found.findings[0].observed is None
    whole = side(lambda c: c["evidence"]["probe"]["taps"][0].update(name="", sha256="e" * 64, norm=None))
    root = side(lambda c: c["evidence"]["probe"]["taps"][0].update(name=""))
    assert "the model's output" in both(forward, root, whole, 0)[0].findings[0].metric


def test_fewer_bits_are_suspected_first_where_a_sign_of_them_was_measured() -> None:
    norm, linear = scaled("forward", "layer.norm", 1.01), scaled("forward", "layer.linear", 1.01)

    def likely(*changes: Change, reference: tuple[Change, ...] = ()) -> list[list[str]]:
        found = both(forward, side(*reference), side(*changes), STEP)
        return [[each.code for each in mismatch.suspicions] for mismatch in found]

    first, last = [["precision", "operator"]] * 2, [["operator", "precision"]] * 2
    bits = [fingerprint(mantissa_bits={"linear": count, "conv": 23}) for count in (23, 20, 19)]
    assert likely(linear, bits[2], reference=(bits[0],)) == first
    assert likely(linear, bits[1], reference=(bits[0],)) == last
    assert likely(linear, bits[2]) == last
    assert likely(norm, bits[2], reference=(bits[0],)) == last
    # Without an fp64 run the sign alone is enough, unless the module is a different one.
    unknown = own("layer.norm", None)
    assert likely(norm, unknown, bits[2], reference=(bits[0],)) == first
    assert likely(norm, unknown, bits[1], reference=(bits[0],)) == last

    def other_module(content: Content) -> None:
        modules = content["evidence"]["model"]["modules"]
        content["evidence"]["model"]["modules"] = [*modules[:2], ("layer.norm", "LayerNorm(eps=1)"), *modules[3:]]

    assert likely(norm, unknown, bits[2], other_module, reference=(bits[0],)) == last
    found, _ = both(forward, side(), side(norm, other_module), STEP)
    assert "layer.norm: LayerNorm() → LayerNorm(eps=1)" in found.suspicions[0].evidence
    no_model = side(norm, other_module, lambda c: c["evidence"].update(model=None))
    assert len(both(forward, side(), no_model, STEP)[0].suspicions[0].evidence) == 2


def test_signs_of_precision_are_lost_bits_and_settings_of_number_formats() -> None:
    flags = {"matmul_precision": "highest", "allow_tf32": "False", "deterministic": "True", "reduced_sum": "False"}
    left = side(fingerprint(mantissa_bits={"linear": 23, "conv": 23, "sum": 20}, numerics=flags))
    changed = flags | {"matmul_precision": "high", "deterministic": "False", "reduced_sum": "True"}
    del changed["allow_tf32"]
    right = side(fingerprint(mantissa_bits={"linear": 10, "conv": 20, "extra": 2}, numerics=changed))
    lines, other = both(precision_signs, left, right)
    assert lines == (
        "linear keeps 10 bits of mantissa instead of 23",
        "matmul_precision is high instead of highest",
        "reduced_sum is True instead of False",
    )
    assert other[0] == "linear keeps 23 bits of mantissa instead of 10"


def test_random_numbers_are_suspected_where_the_generators_or_the_mode_show_them() -> None:
    norm = scaled("forward", "layer.norm", 1.01)
    plain = side()
    drawn = generators(STEP + 1, torch="e")
    found, _ = both(forward, plain, side(norm, drawn), STEP)
    assert code(found) == "rng"
    assert found.suspicions[0].evidence[1:] == ("after step 2 the generators' states differ, before it they did not",)
    found, _ = both(forward, plain, side(norm, drawn, generators(STEP, torch="f")), STEP)
    assert code(found) == "operator"
    found, other = both(forward, plain, side(norm, of_step(STEP, training_mode=False)), STEP)
    assert found.suspicions[0].evidence[1:] == ("the model is in evaluation mode",)
    assert other.suspicions[0].evidence[1:] == ("the model is in training mode",)
    # At the last step no later state shows a draw.
    end = scaled("forward", "layer.norm", 1.01, step=STEPS - 1)
    assert (
        code(both(forward, plain, side(end, of_step(STEPS - 1, rng={"torch": "e" * 64})), STEPS - 1)[0]) == "operator"
    )
    found, _ = both(forward, plain, side(end, of_step(STEPS - 1, training_mode=False)), STEPS - 1)
    assert found.suspicions[0].evidence[1:] == ("the model is in evaluation mode",)
    found, _ = both(forward, plain, side(scaled("forward", "layer.norm", 1.01, kind="Dropout")), STEP)
    assert code(found) == "operator"
    dropout = [side(scaled("forward", "layer.norm", factor, kind="MyDropout")) for factor in (1.0, 1.01)]
    assert code(both(forward, *dropout, STEP)[0]) == "rng"


def test_a_different_tree_of_modules_is_suspected_with_up_to_four_of_them() -> None:
    norm = scaled("forward", "layer.norm", 1.01)

    def tree(*names: str) -> Change:
        return lambda c: c["evidence"]["model"].update(modules=[(name, "X()") for name in names])

    found, _ = both(forward, side(tree("embed", "a")), side(norm, tree("embed", "b", "c")), STEP)
    assert (code(found), len(found.suspicions)) == ("model.architecture", 3)
    assert found.suspicions[0].evidence == tuple(f"module {name} exists on one side only" for name in "abc")
    found, _ = both(forward, side(tree()), side(norm, tree(*"abcde")), STEP)
    assert len(found.suspicions[0].evidence) == 4
    found, _ = both(forward, side(tree("a")), side(norm, tree("a")), STEP)
    assert code(found) == "operator"
    # Random draws are likelier.
    found, _ = both(forward, side(tree("a")), side(norm, tree("b"), of_step(STEP, training_mode=False)), STEP)
    assert code(found) == "rng"
    error = Pair(side(), side(norm)).errors(STEP, "forward")[2]
    assert [each.code for each in suspicions(Pair(side(), side(norm)), STEP, error)] == ["operator", "precision"]


@pytest.mark.parametrize("step", [1, 4])
def test_the_loss_of_different_logits_shows_an_output_that_was_not_sketched(step: int) -> None:
    plain = side()
    loss_of = plain.record.evidence.probe.steps[step].loss_reference or 0.0  # type: ignore[union-attr]
    limit = LIMIT["loss"]

    def off(share: float, logits: str = "e") -> LoadedRecord:
        return side(of_step(step, loss_reference=loss_of * (1 + share * limit), logits_sha256=logits * 64))

    for share, differs in ((1.01, True), (0.99, False), (-1.01, True), (-0.99, False)):
        found, _ = both(forward_numbers, plain, off(share), step)
        assert (found is not None) is differs
    found, _ = both(forward_numbers, plain, side(of_step(step, loss_reference=None, logits_sha256="e" * 64)), step)
    assert found.findings[0].observed is None
    assert both(forward_numbers, plain, side(of_step(step, loss_reference=9.0)), step) == (None, None)
    drawn = side(of_step(step, loss_reference=9.0, logits_sha256="e" * 64), generators(step + 1, torch="e"))
    found, _ = both(forward_numbers, plain, drawn, step)
    after = f"after step {step} the generators' states differ, before it they did not"
    assert found.suspicions[0].evidence == (after,)
    found, _ = both(
        forward_numbers,
        plain,
        side(of_step(step, loss_reference=9.0, logits_sha256="e" * 64, training_mode=False)),
        step,
    )
    assert [each.code for each in found.suspicions] == ["rng", "operator"]


# The loss.


def test_a_loss_that_contradicts_its_logits_is_a_cause_unless_both_contradict_them_alike() -> None:
    plain = side()
    true = plain.record.evidence.probe.steps[STEP].loss_reference or 0.0  # type: ignore[union-attr]

    def at(factor: float, **changes: Any) -> LoadedRecord:
        return side(of_step(STEP, loss=true * factor, **changes))

    near = LIMIT["loss"]
    for share, differs in ((0.99, False), (1.01, True), (-0.99, False), (-1.01, True)):
        found, _ = both(loss, plain, at(1 + share * near), STEP)
        assert (found is not None) is differs
    found, other = both(loss, plain, at(1.5), STEP)
    assert (found.findings[0].observed, found.findings[0].detail) == (pytest.approx(0.5), "")
    assert other.findings[0].detail == "the reference is wrong"
    assert found.suspicions[0].evidence == ("off by 0.5, the reference by 0",)
    assert both(loss, at(1.5), at(1.5), STEP) == (None, None)
    assert both(loss, at(1.5), at(1.5 * (1 + 0.9 * near)), STEP) == (None, None)
    assert both(loss, at(1.5), at(1.5 * (1 + 2 * near)), STEP)[0] is not None
    assert both(loss, at(1.5), at(1.2), STEP)[0] is not None
    # Just over the limit on one side only, though close to each other.
    assert both(loss, at(1 + 0.6 * near), at(1 + 1.2 * near), STEP)[0] is not None
    assert both(loss, at(1 + 0.2 * near), at(1 + 0.8 * near), STEP) == (None, None)
    found, _ = both(loss, plain, side(of_step(STEP, loss=None)), STEP)
    assert found.findings[0].observed is None
    found, other = both(loss, plain, at(1.01, loss_dtype="bfloat16"), STEP)
    assert (code(found), why(found)) == ("precision", "the loss is computed in bfloat16 instead of float32")
    assert why(other) == "the loss is computed in float32 instead of bfloat16"


# Gradients.

NAMES = tuple(PARAMETERS)


def test_parameters_that_only_one_side_trains_are_counted() -> None:
    plain, frozen_one = side(), {"trainable": False}
    assert both(frozen, plain, plain) == (None, None)
    found, other = both(frozen, plain, side(parameters(layer_linear_weight=frozen_one)))
    assert (why(found), why(other)) == ("layer.linear.weight is frozen", "layer.linear.weight is trained")
    found, _ = both(frozen, plain, side(parameters(**dict.fromkeys(("embed_weight", "head_weight"), frozen_one))))
    assert why(found) == "embed.weight is frozen, and so are 1 more"
    three = side(parameters(**{name.replace(".", "_"): frozen_one for name in NAMES}))
    found, other = both(frozen, plain, three)
    assert why(found) == "embed.weight is frozen, and so are 2 more"
    assert why(other) == "embed.weight is trained, and so are 2 more"
    assert both(frozen, plain, side(parameters(new=frozen_one))) == (None, None)
    assert both(frozen, side(lambda c: c["evidence"].update(model=None)), three) == (None, None)


def trained(*changes: Change) -> LoadedRecord:
    """Return a record in which no gradient is zero."""

    def filled(content: Content) -> None:
        taps, sketches = content["evidence"]["probe"]["taps"], content["arrays"]["sketches"]["sketch"]
        places = {
            tap["name"]: place for place, tap in enumerate(taps) if (tap["step"], tap["stage"]) == (STEP, "gradient")
        }
        taps[places[NAMES[0]]]["norm"] = taps[places[NAMES[1]]]["norm"]
        sketches[places[NAMES[0]]] = sketches[places[NAMES[1]]][::-1]

    return side(filled, *changes)


def test_gradients_are_named_from_the_loss_backwards_and_their_common_factor() -> None:
    plain = trained()
    assert both(gradient, plain, plain, STEP) == (None, None)
    embed, linear, head = (
        scaled("gradient", name, factor) for name, factor in zip(NAMES, (1.5, 1.5, 1.0), strict=True)
    )
    found, other = both(gradient, plain, trained(embed, linear, head), STEP)
    assert (found.at.at, found.findings[0].detail) == ("layer.linear.weight", "2 of 3 gradients over their limits")
    assert why(found) == "all of them are the reference's times 1.5: accumulation or scaling"
    assert why(other) == "all of them are the reference's times 0.666667: accumulation or scaling"
    found, _ = both(gradient, plain, trained(embed, scaled("gradient", NAMES[1], 1.2)), STEP)
    assert "weighting of micro-batches" in why(found)
    for factor, is_one in ((1.5009, True), (1.51, False)):
        found, _ = both(gradient, plain, trained(embed, scaled("gradient", NAMES[1], factor)), STEP)
        assert ("accumulation" in why(found)) is is_one
    # A gradient that is not finite is not a missing one.
    found, _ = both(gradient, plain, trained(scaled("gradient", NAMES[0], norm=None)), STEP)
    assert (found.findings[0].observed, found.findings[0].detail) == (None, "1 of 3 gradients over their limits")
    found, _ = both(gradient, plain, trained(scaled("gradient", NAMES[1], math.nan, norm=None)), STEP)
    assert "weighting of micro-batches" in why(found)

    def no_sketches(content: Content) -> None:
        del content["arrays"]["sketches"]

    found, _ = both(gradient, plain, trained(embed, no_sketches), STEP)
    assert "weighting of micro-batches" in why(found)


def test_a_backward_pass_with_fewer_bits_is_suspected_by_its_own_fp64_run() -> None:
    plain, linear = trained(), scaled("gradient", NAMES[1], 1.01)
    found, _ = both(gradient, plain, trained(linear, own(NAMES[1], 0.005, stage="gradient")), STEP)
    assert [each.code for each in found.suspicions] == ["precision", "gradient"]
    # The first of them, from the loss backwards, decides.
    for name, first in ((NAMES[1], "precision"), (NAMES[0], "gradient")):
        changes = (linear, scaled("gradient", NAMES[0], 1.01), own(name, 0.005, stage="gradient"))
        found, _ = both(gradient, trained(), trained(*changes), STEP)
        assert (found.at.at, code(found)) == (NAMES[1], first)
    bits = [fingerprint(mantissa_bits={"linear": count}) for count in (23, 10)]
    unknown = own(NAMES[1], None, stage="gradient")
    for changes, first in (((unknown, bits[1]), "precision"), ((unknown,), "gradient"), ((bits[1],), "gradient")):
        found, _ = both(gradient, trained(bits[0]), trained(linear, *changes), STEP)
        assert code(found) == first


def test_gradients_of_one_side_only_are_missing_or_additional() -> None:
    plain = trained()
    for names in (NAMES[1:2], NAMES[:2]):
        found, other = both(gradient, plain, trained(without("gradient", *names)), STEP)
        more = ", like 1 more" if len(names) > 1 else ""
        assert why(found) == f"{names[0]} gets no gradient{more}"
        assert why(other) == f"{names[0]} gets a gradient, but not in the reference{more}"
        assert found.findings[0].detail == f"{3 - len(names)} have one in both"
    # A step without any common gradient was not sketched there.
    assert both(gradient, plain, trained(without("gradient", *NAMES)), STEP) == (None, None)

    # Repeated calls have entries of their own; a gradient of zeros is none.
    def again(content: Content) -> None:
        for tap in content["evidence"]["probe"]["taps"]:
            if (tap["step"], tap["stage"], tap["name"]) == (STEP, "gradient", NAMES[1]):
                tap["name"] += "#1"

    assert gradient(Pair(trained(without("gradient", NAMES[1])), trained(again)), STEP) is None
    zero = scaled("gradient", NAMES[1], 0.0)
    found, other = both(gradient, plain, trained(zero), STEP)
    assert why(found) == f"{NAMES[1]} gets no gradient"
    assert other is not None
    assert both(gradient, trained(zero), trained(without("gradient", NAMES[1])), STEP) == (None, None)
    found, _ = both(gradient, plain, trained(zero, scaled("gradient", NAMES[2], 0.0)), STEP)
    assert why(found) == f"{NAMES[1]} gets no gradient, like 1 more"
    # A gradient that is not finite is one.
    infinite = scaled("gradient", NAMES[1], norm=None)
    found, other = both(gradient, trained(infinite), trained(without("gradient", NAMES[1])), STEP)
    assert why(found) == f"{NAMES[1]} gets no gradient"
    assert why(other) == f"{NAMES[1]} gets a gradient, but not in the reference"
    # Others differ as well: a short format may lose a small gradient.
    found, _ = both(gradient, plain, trained(zero, scaled("gradient", NAMES[2], 1.1)), STEP)
    assert found.at.at == NAMES[2]


@pytest.mark.parametrize("step", [1, 3])
def test_the_norm_of_gradients_has_a_limit_at_steps_without_sketches(step: int) -> None:
    plain = side()
    norm = plain.record.evidence.probe.steps[step].gradient_norm or 0.0  # type: ignore[union-attr]
    limit = Pair(plain, plain).norm_limit(step)

    def at(value: float | None, digest: str | None = "e" * 64) -> LoadedRecord:
        return side(of_step(step, gradient_norm=value, gradients_sha256=digest))

    for share, differs in ((0.98, False), (1.02, True), (-0.98, False), (-1.02, True)):
        assert (both(gradient_numbers, plain, at(norm * (1 + share * limit)), step)[0] is not None) is differs
    found, _ = both(gradient_numbers, plain, at(None, None), step)
    assert found.findings[0].observed is None
    assert both(gradient_numbers, at(None), at(None, None), step) == (None, None)
    assert both(gradient_numbers, at(None, None), at(9.0, None), step)[0] is not None
    assert both(gradient_numbers, at(8.0, None), at(9.0, None), step)[0] is not None
    assert both(gradient_numbers, at(8.0), at(9.0), step) == (None, None)


def test_a_norm_is_clipped_by_the_spec() -> None:
    def at(norm: float | None, clipped: float | None) -> LoadedRecord:
        return side(of_step(STEP, gradient_norm=norm, gradient_norm_clipped=clipped))

    plain = at(4.0, 1.0)
    assert both(clipping, plain, at(0.5, 0.5), STEP) == (None, None)
    for clipped, differs in ((1 + 4.7e-5, False), (1 + 4.9e-5, True), (1 - 4.9e-5, True), (4.0, True)):
        assert (both(clipping, plain, at(4.0, clipped), STEP)[0] is not None) is differs
    found, _ = both(clipping, plain, at(0.5, 0.25), STEP)
    assert why(found) == "a norm of 0.5 is clipped to 0.25"
    assert found.findings[0].observed == pytest.approx(0.5)
    # Both contradict the spec alike, or apart.
    assert both(clipping, at(4.0, 2.0), at(4.0, 2.0), STEP) == (None, None)
    assert both(clipping, at(4.0, 2.0), at(4.0, 3.0), STEP)[0] is not None
    found, _ = both(clipping, plain, at(None, 1.0), STEP)
    assert found.findings[0].observed is None
    assert both(clipping, plain, at(None, None), STEP) == (None, None)
    assert both(clipping, plain, at(4.0, None), STEP)[0] is not None


# The update.


def rates(*values: float) -> LoadedRecord:
    return side(of_step(STEP, learning_rates=values))


def test_learning_rates_are_compared_group_by_group_or_as_sets() -> None:
    plain = rates(0.1, 0.2)
    found, other = both(schedule, plain, rates(0.1, 0.3), STEP)
    assert why(found) == "step 2 was taken with a learning rate of 0.3 instead of 0.2"
    assert why(other) == "step 2 was taken with a learning rate of 0.2 instead of 0.3"
    found, _ = both(schedule, plain, rates(0.2, 0.1), STEP)
    assert why(found) == "step 2 was taken with a learning rate of 0.2 instead of 0.1"
    assert both(schedule, plain, rates(0.2, 0.1, 0.2), STEP) == (None, None)
    # The group that differs is named, also where the largest rates are equal.
    found, other = both(schedule, rates(0.1, 0.3, 0.4), rates(0.1, 0.2, 0.4), STEP)
    assert why(found) == "step 2 was taken with a learning rate of 0.2 instead of 0.3"
    assert (found.findings[0].observed, found.findings[0].limit) == (0.2, 0.3)
    assert why(other) == "step 2 was taken with a learning rate of 0.3 instead of 0.2"
    found, other = both(schedule, plain, rates(0.2), STEP)
    assert why(found) == "step 2 was taken with learning rates 0.2 instead of 0.1, 0.2"
    assert why(other) == "step 2 was taken with learning rates 0.1, 0.2 instead of 0.2"
    found, other = both(schedule, plain, rates(), STEP)
    assert (found.findings[0].observed, other.findings[0].limit) == (None, None)
    assert both(schedule, rates(1.0), rates(1.0 + 2.0**-40), STEP) == (None, None)
    assert both(schedule, rates(1.0), rates(1.0 + 2.0**-39), STEP)[0] is not None


def groups(*given: tuple[Content, tuple[str, ...]]) -> Change:
    return of_probe(optimizer=[{"settings": settings, "parameters": names} for settings, names in given])


def test_settings_of_the_optimizer_are_compared_parameter_by_parameter() -> None:
    base: Content = {"class": "AdamW", "lr": 0.1, "initial_lr": 0.1, "eps": 1e-8, "weight_decay": 0.01, "foreach": True}
    plain = side(groups((base, NAMES)))
    ignored = base | {"lr": 0.2, "initial_lr": 0.3, "foreach": False, "fused": True, "capturable": True}
    assert both(settings, plain, side(groups((ignored | {"eps": float("1e-8")}, NAMES)))) == (None, None)
    assert both(settings, plain, side(groups((dict(base), NAMES[:1]), (dict(base), NAMES[1:])))) == (None, None)
    found, other = both(settings, plain, side(groups((base, NAMES[:1]), (base | {"eps": 1e-6}, NAMES[1:]))))
    assert found.findings[0].detail == (
        "eps of layer.linear.weight is 1e-06 instead of 1e-08; eps of head.weight is 1e-06 instead of 1e-08"
    )
    assert other.findings[0].observed == 2
    found, other = both(settings, plain, side(groups((base, (NAMES[0], NAMES[2])))))
    assert found.findings[0].detail == "layer.linear.weight is in no parameter group"
    assert other.findings[0].detail == "layer.linear.weight is updated in addition"
    many = base | {"eps": 1.0, "weight_decay": 0.0}
    found, _ = both(settings, plain, side(groups((many, NAMES))))
    assert (found.findings[0].observed, found.findings[0].detail.count(";")) == (6, 3)
    # A parameter that a side does not train, or that only one model has, belongs to a different rung.
    frozen_one = parameters(layer_linear_weight={"trainable": False})
    two = (base, (NAMES[0], NAMES[2]))
    assert both(settings, plain, side(frozen_one, groups(two))) == (None, None)
    assert both(settings, plain, side(parameters(layer_linear_weight=None), groups(two))) == (None, None)
    found, _ = both(settings, plain, side(frozen_one, groups((many, (NAMES[0], NAMES[2])))))
    assert found.findings[0].observed == 4
    no_model = side(groups(two), lambda c: c["evidence"].update(model=None))
    assert both(settings, plain, no_model)[0] is not None
    assert both(settings, plain, side(lambda c: c["evidence"].update(probe=None))) == (None, None)


def test_the_weight_farthest_over_its_limit_is_named() -> None:
    plain = side()
    assert both(update, plain, plain, STEP) == (None, None)
    linear, head = scaled("weight", NAMES[1], 1.01), scaled("weight", NAMES[2], 1.001)
    found, _ = both(update, plain, side(linear, head, scaled("weight", NAMES[0], 1 + 1e-8)), STEP)
    assert (found.at.at, found.findings[0].detail) == (NAMES[1], "2 parameters over their limits")
    assert [each.code for each in found.suspicions] == ["optimizer", "gradient"]
    found, _ = both(update, plain, side(scaled("weight", NAMES[2], norm=None)), STEP)
    assert found.findings[0].observed is None
    keep([update(Pair(plain, side(linear), scale=scale), STEP) for scale in (1e-3, 1.0, 100.0)])


def norms(*values: float | None) -> list[Change]:
    return [of_step(STEP + place, update_norm=value) for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("factors", "text"),
    [
        ((1.5, 1.5, 1.5), "1.5"), ((0.5, 0.5, 0.5), "0.5"), ((3.0, 3.0, 3.0), "3"),
        ((1.0, 1.0, 1.0), ""), ((1.5, 1.5, None), ""), ((None, 1.5, 1.5), ""),
        ((1.5, 1.529, 1.5), "1.5"), ((1.5, 1.531, 1.5), ""),  # the factors vary by a fiftieth
        ((1.02, 1.0295, 1.02), "1.02"), ((1.02, 1.0305, 1.02), ""),  # by half of their distance from 1
        ((0.98, 0.9705, 0.98), "0.98"), ((0.98, 0.9695, 0.98), ""),
    ],
)  # fmt: skip
def test_a_learning_rate_in_force_scales_all_updates_by_one_factor(factors: Any, text: str) -> None:
    base = (0.25, 0.3, 0.35)
    changed = [None if factor is None else size * factor for size, factor in zip(base, factors, strict=True)]
    left, right = side(*norms(*base)), side(*norms(*changed))
    # Sketches of the weights that show the scaled update are needed, where weights differ at all.
    pair = Pair(without_weights(left), without_weights(right))
    found = keep(rate_suspicions(pair, STEP))
    assert bool(found) is bool(text)
    assert not found or f"times {text} at every step" in found[0].why
    assert keep(rate_suspicions(pair, STEPS - 2)) == ()


def without_weights(made: LoadedRecord) -> LoadedRecord:
    probe = made.record.evidence.probe
    assert probe is not None
    left = [place for place, tap in enumerate(probe.taps) if tap.stage != "weight"]
    assert probe.envelope is not None
    envelope = probe.envelope.replace(
        errors=[probe.envelope.errors[place] for place in left],
        fp64_errors=[probe.envelope.fp64_errors[place] for place in left],
    )
    changed = probe.replace(taps=[probe.taps[place] for place in left], envelope=envelope)
    arrays = made.arrays | {"sketches": {"sketch": made.arrays["sketches"]["sketch"][left]}}
    return LoadedRecord(made.record.replace(evidence=made.record.evidence.replace(probe=changed)), made.folder, arrays)


@pytest.mark.parametrize(
    ("share", "is_collinear"), [(1.0, True), (1.48, True), (1.52, False), (0.68, True), (0.65, False)]
)
def test_the_scaled_update_has_to_explain_the_difference_of_the_weights(share: float, is_collinear: bool) -> None:
    plain = side()
    probe = plain.record.evidence.probe
    assert probe is not None
    sizes = [
        tap.norm or 0.0 for tap in probe.taps if (tap.step, tap.stage) == (STEP, "weight") and tap.name in NAMES[1:]
    ]

    def pair(*changes: Change) -> Pair:
        """Scale two weights, and the updates by factors such that they explain the scaling up to `share`."""
        weights = [scaled("weight", NAMES[1], 1.002), scaled("weight", NAMES[2], 1.001)]
        apart = Pair(plain, side(*weights)).errors(STEP, "weight")
        size = math.hypot(*(tap.error * (tap.reference.norm or 0.0) for tap in apart))
        base = size / 2.5 / share
        left = side(*norms(base, 0.3, 0.4))
        return Pair(left, side(*weights, *norms(base * 3.5, 1.05, 1.4), *changes))

    assert len(sizes) == 2
    assert bool(keep(rate_suspicions(pair(), STEP))) is is_collinear
    # A tensor that is not finite shows nothing.
    assert bool(keep(rate_suspicions(pair(scaled("weight", NAMES[0], norm=None)), STEP))) is is_collinear


def test_the_norm_of_an_update_is_compared_only_in_fp64() -> None:
    left = side(*norms(0.3))

    def found(value: float | None, scale: float = 2.0**-20) -> bool:
        right = side(*norms(value))
        results = [update_numbers(Pair(*pair, scale=scale), STEP) for pair in ((left, right), (right, left))]
        keep(results)
        assert len({result is None for result in results}) == 1
        return results[0] is not None

    limit = Pair(left, left, scale=2.0**-20).norm_limit(STEP)
    assert [found(0.3 * (1 + share * limit)) for share in (0.98, 1.02, -0.98, -1.02)] == [False, True, False, True]
    assert not found(None)
    assert not found(0.6, scale=1.0)
    assert found(0.6, scale=0.99)


# Portable bits.


def leg(**plan: Any) -> LoadedRecord:
    return side(leg=True, **plan)


def in_leg(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"]["portable"].update(changes)


PLACES: dict[str, tuple[str, str | None]] = {
    "0/outputs/layer.norm": ("forward", "layer.norm"), "0/loss": ("loss", "loss"), "1/loss": ("forward", "logits"),
    "0/gradients/layer.linear.weight": ("gradient", "layer.linear.weight"),
    "1/weights/layer.linear.weight": ("optimizer", "layer.linear.weight"),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_portable_bits_that_differ_name_stage_step_and_tensor(place: str) -> None:
    plain = leg()
    found, other = both(portable, plain, leg(portable={place: "f" * 16}))
    assert (found.at.stage, found.at.at, found.at.step) == (*PLACES[place], int(place[0]))
    assert other.at == found.at
    assert both(reordered, plain, leg(portable={place: "f" * 16})) == (None, None)
    assert both(proven_steps, plain, leg(portable={place: "f" * 16})) == (0, 0)


def test_the_first_portable_difference_is_that_of_the_order_of_computation() -> None:
    both_of_two = {"0/gradients/embed.weight": "f" * 16, "0/gradients/layer.linear.weight": "f" * 16}
    found, _ = both(portable, leg(), leg(portable=both_of_two))
    assert found.at.at == "layer.linear.weight"
    found, _ = both(portable, leg(), leg(portable={"0/outputs/head": "f" * 16, "0/outputs/embed": "f" * 16}))
    assert found.at.at == "embed"

    def other_outputs(*names: str) -> Change:
        def change(content: Content) -> None:
            steps = content["evidence"]["probe"]["portable"]["steps"]
            steps[0]["outputs"] = [*steps[0]["outputs"], *((name, "a" * 16) for name in names)]

        return change

    found, other = both(portable, leg(), side(other_outputs("extra"), leg=True))
    assert found.at.at == other.at.at == "extra"
    assert both(portable, leg(), side(other_outputs("extra#1"), leg=True)) == (None, None)
    found, _ = both(portable, leg(), leg(portable={"1/loss": None}))
    assert found.at.step == 1
    same = [leg(portable={"0/loss": None}) for _ in range(2)]
    assert both(portable, *same)[0] is not None


def test_equal_legs_prove_their_steps_and_an_operation_or_a_device_prevents_the_proof() -> None:
    plain = leg()
    assert both(proven_steps, plain, plain) == (2, 2)
    assert [each.outcome for each in both(portable_findings, plain, plain)[0]] == ["pass"]

    def shorter(content: Content) -> None:
        portable_leg = content["evidence"]["probe"]["portable"]
        portable_leg["steps"] = portable_leg["steps"][:1]

    assert both(proven_steps, plain, side(shorter, leg=True)) == (0, 0)
    assert both(proven_steps, side(shorter, leg=True), side(shorter, leg=True)) == (1, 1)
    assert both(portable, plain, side(shorter, leg=True)) == (None, None)
    unportable = leg(unportable="aten.sin")
    found, other = both(portable_findings, plain, unportable)
    assert "the candidate calls aten.sin" in found[0].detail
    assert "the reference calls aten.sin" in other[0].detail
    assert len(both(portable_findings, unportable, unportable)[0]) == 2
    assert both(proven_steps, plain, unportable) == (0, 0)
    broken = leg(repeated=False)
    assert both(device, plain, plain) == (None, None)
    found, other = both(device, plain, broken)
    assert (found.findings[0].detail, other.findings[0].detail) == (
        "on the device of the candidate", "on the device of the reference",
    )  # fmt: skip
    assert "reference and candidate" in both(device, broken, broken)[0].findings[0].detail
    changed = leg(portable={"0/loss": "f" * 16})
    assert both(portable, broken, changed) == both(portable, side(), changed) == (None, None)
    assert both(proven_steps, plain, broken) == both(proven_steps, plain, side()) == (0, 0)
    assert both(device, side(), broken) == (None, None)
    assert both(portable_findings, side(), unportable) == ([], [])
    no_probe = side(lambda c: c["evidence"].update(probe=None))
    assert both(portable, no_probe, changed) == both(reordered, no_probe, changed) == (None, None)


@pytest.mark.parametrize(
    ("place", "sketch", "size", "limit", "slices"),
    [
        ("0/outputs/layer.norm", "0/forward layer.norm", 1.0, 1e-12, 2),
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, 1e-12, 2),
        ("0/outputs/layer.norm", "0/gradient head.weight", 1e-6, 1e-9, 2),  # measured by the largest gradient
        ("0/outputs/layer.norm", "0/gradient layer.linear.weight", 1.0, 2.5e-6, 1),
        ("1/gradients/embed.weight", "1/gradient layer.linear.weight", 1.0, 2.5e-6, 2),
        ("1/loss", "1/gradient layer.linear.weight", 1.0, None, 2),
        ("0/weights/embed.weight", "0/weight layer.linear.weight", 1.0, 2e-15, 2),
        ("0/weights/embed.weight", "0/weight layer.linear.weight", 1.0, 2e-15, 1),
        ("0/gradients/embed.weight", "0/weight layer.linear.weight", 1.0, math.inf, 2),
    ],
)  # fmt: skip
def test_a_different_order_of_operations_moves_all_numbers_of_a_stage_by_last_bits(
    place: str, sketch: str, size: float, limit: float | None, slices: int
) -> None:
    digests = {place: "0x1.8p-1" if place.endswith("loss") else "f" * 16}
    reference = side(in_leg(slices=slices), leg=True, has_portable_sketches=True)
    edges = (0.9, 1.1) if limit not in (None, math.inf) else (0.0, 1e-3)
    verdicts = []
    for edge in edges:
        value = size + edge * (limit or 0.0) * size if limit not in (None, math.inf) else size + edge
        sketches = {sketch: value}
        right = side(
            in_leg(slices=slices), leg=True, has_portable_sketches=True, portable=digests, portable_sketches=sketches
        )
        found, _ = both(reordered, reference, right)
        both(portable, reference, right)
        verdicts.append(found is not None)
    assert verdicts == {None: [False, False], math.inf: [True, True]}.get(limit, [True, False])


def test_losses_and_sketches_that_are_missing_or_malformed_are_no_order() -> None:
    reference = leg(has_portable_sketches=True)
    near = (0.75 * (1 + 0.9e-12)).hex()
    for value, is_order in ((near, True), ((0.75 * (1 + 1.2e-12)).hex(), False), ("x", False), ("0x1p9999", False)):
        right = leg(has_portable_sketches=True, portable={"0/loss": value})
        assert (both(reordered, reference, right)[0] is not None) is is_order
    lost = leg(has_portable_sketches=True, portable={"0/loss": None})
    assert both(reordered, reference, lost) == (None, None)
    moved = leg(has_portable_sketches=False, portable={"0/loss": near})
    assert both(reordered, reference, moved) == (None, None)
    assert both(reordered, leg(), moved) == (None, None)

    def edit(name: str, sketch: list[float] | None) -> Change:
        def change(content: Content) -> None:
            step = content["evidence"]["probe"]["portable"]["steps"][0]
            sketches = [(key, value) for key, value in step["sketches"] if key != name]
            step["sketches"] = [*sketches, (name, sketch)] if sketch else sketches

        return change

    changes = {"leg": True, "has_portable_sketches": True, "portable": {"0/loss": near}}
    assert both(reordered, reference, side(edit("gradient embed.weight", None), **changes)) == (None, None)
    again = side(edit("gradient embed.weight#1", [9.0] * 8), **changes)
    assert both(reordered, reference, again)[0] is not None
    # A small gradient is measured by a thousandth of the largest.
    large = ("gradient embed.weight", [0.0, 8.0, *[0.0] * 6])
    for off, is_order in ((7.5e-15, True), (8.5e-15, False)):
        left = side(
            edit(*large), edit("gradient head.weight", [1e-6, *[0.0] * 7]), leg=True, has_portable_sketches=True
        )
        right = side(edit(*large), edit("gradient head.weight", [1e-6 + off, *[0.0] * 7]), **changes)
        assert (both(reordered, left, right)[0] is not None) is is_order
    empty = [0.0] * 8
    zero = side(edit("weight embed.weight", empty), leg=True, has_portable_sketches=True)
    for sketch, is_order in ((empty, True), ([0.0, 1e-30, *empty[2:]], False)):
        right = side(
            edit("weight embed.weight", sketch),
            leg=True, has_portable_sketches=True, portable={"0/weights/head.weight": "f" * 16},
        )  # fmt: skip
        assert (reordered(Pair(zero, right)) is not None) is is_order
        keep(reordered(Pair(zero, right)))
