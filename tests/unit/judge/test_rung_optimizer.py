"""Rungs of the update: rates, settings, weights and norms, each in both directions."""

from __future__ import annotations

from typing import Any

from plumbline.judge.rungs.optimizer import schedule, settings, update
from plumbline.records import LoadedRecord
from tests.said import said

from .rung_numbers import NAMES, STEP, of_step, scaled
from .rung_records import Change, Content, both, parameters, side, why


def of_probe(**changes: Any) -> Change:
    return lambda content: content["evidence"]["probe"].update(changes)


def rates(*values: float) -> LoadedRecord:
    return side(of_step(STEP, learning_rate=values))


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
    linear, head = scaled("optimizer", NAMES[1], 1.01), scaled("optimizer", NAMES[2], 1.001)
    found, _ = both(update, plain, side(linear, head, scaled("optimizer", NAMES[0], 1 + 1e-8)), STEP)
    assert (found.at.at, said(found.findings[0].detail)) == (NAMES[1], "2 parameters over their limits")
    assert [each.code for each in found.suspicions] == ["optimizer", "gradient"]
    found, _ = both(update, plain, side(scaled("optimizer", NAMES[2], norm=None)), STEP)
    assert found.findings[0].observed is None
