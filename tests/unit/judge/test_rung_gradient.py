"""Rungs of the gradients: frozen parameters, limits, missing gradients and clipping, each in both directions."""

from __future__ import annotations

import math

import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.gradient import clipping, frozen, gradient
from plumbline.records import LoadedRecord
from tests.said import said

from .rung_numbers import NAMES, STEP, of_step, scaled
from .rung_records import Change, Content, both, parameters, side, why


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

    return change


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
    assert (found.at.at, said(found.findings[0].detail)) == (
        "layer.linear.weight",
        "2 of 3 gradients over their limits",
    )
    assert why(found) == "all of them are the reference's times 1.5: accumulation or scaling"
    assert why(other) == "all of them are the reference's times 0.666667: accumulation or scaling"
    found, _ = both(gradient, plain, trained(embed, scaled("gradient", NAMES[1], 1.2)), STEP)
    assert "weighting of micro-batches" in why(found)
    for factor, is_one in ((1.5009, True), (1.51, False)):
        found, _ = both(gradient, plain, trained(embed, scaled("gradient", NAMES[1], factor)), STEP)
        assert ("accumulation" in why(found)) is is_one
    # A gradient that is not finite is not a missing one.
    found, _ = both(gradient, plain, trained(scaled("gradient", NAMES[0], norm=None)), STEP)
    assert (found.findings[0].observed, said(found.findings[0].detail)) == (None, "1 of 3 gradients over their limits")
    found, _ = both(gradient, plain, trained(scaled("gradient", NAMES[1], math.nan, norm=None)), STEP)
    assert "weighting of micro-batches" in why(found)

    def no_sketches(content: Content) -> None:
        del content["arrays"]["sketches"]

    found, _ = both(gradient, plain, trained(embed, no_sketches), STEP)
    assert "weighting of micro-batches" in why(found)


def test_gradients_of_one_side_only_are_missing_or_additional() -> None:
    plain = trained()
    for names in (NAMES[1:2], NAMES[:2]):
        found, other = both(gradient, plain, trained(without("gradient", *names)), STEP)
        more = ", like 1 more" if len(names) > 1 else ""
        assert why(found) == f"{names[0]} gets no gradient{more}"
        assert why(other) == f"{names[0]} gets a gradient, but not in the reference{more}"
        assert said(found.findings[0].detail) == f"{3 - len(names)} have one in both"
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


def test_a_norm_is_clipped_by_the_spec() -> None:
    def at(norm: float | None, clipped: float | None) -> LoadedRecord:
        return side(of_step(STEP, gradient_norm=norm, clipped_norm=clipped))

    plain = at(4.0, 1.0)
    assert both(clipping, plain, at(0.5, 0.5), STEP) == (None, None)
    for clipped, differs in ((1 + 4.8e-5, False), (1 + 4.9e-5, True), (1 - 4.9e-5, True), (4.0, True)):
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
