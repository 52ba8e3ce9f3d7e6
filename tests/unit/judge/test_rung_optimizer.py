"""Rungs of the update: rates, settings, weights and norms, each in both directions."""

from __future__ import annotations

import math
from typing import Any

import pytest

from plumbline.judge.pair import Pair
from plumbline.judge.rungs.optimizer import rate_suspicions, schedule, settings, update, update_numbers
from plumbline.records import LoadedRecord
from tests.kept_results import keep
from tests.said import said

from .conftest import STEPS
from .rung_numbers import NAMES, STEP, of_step, scaled
from .rung_records import Change, Content, both, parameters, side, why


def of_probe(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"].update(changes)


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
    assert said(found.findings[0].detail) == (
        "eps of layer.linear.weight is 1e-06 instead of 1e-08; eps of head.weight is 1e-06 instead of 1e-08"
    )
    assert other.findings[0].observed == 2
    found, other = both(settings, plain, side(groups((base, (NAMES[0], NAMES[2])))))
    assert said(found.findings[0].detail) == "layer.linear.weight is in no parameter group"
    assert said(other.findings[0].detail) == "layer.linear.weight is updated in addition"
    many = base | {"eps": 1.0, "weight_decay": 0.0}
    found, _ = both(settings, plain, side(groups((many, NAMES))))
    assert (found.findings[0].observed, said(found.findings[0].detail).count(";")) == (6, 3)
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
    assert (found.at.at, said(found.findings[0].detail)) == (NAMES[1], "2 parameters over their limits")
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
    assert not found or f"times {text} at every step" in said(found[0].why)
    assert keep(rate_suspicions(pair, STEPS - 2)) == ()


def without_weights(made: LoadedRecord) -> LoadedRecord:
    probe = made.record.evidence.probe
    assert probe is not None
    left = [place for place, tap in enumerate(probe.taps) if tap.stage != "weight"]
    changed = probe.replace(taps=[probe.taps[place] for place in left])
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
