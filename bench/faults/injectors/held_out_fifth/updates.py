"""Fifth held-out set: faults of the optimizer."""

from __future__ import annotations

import math
from typing import Any

import torch

from bench.faults.injectors.held_out_third import _around_step, _values
from bench.faults.injectors.held_out_training import _before_update, _own_update
from bench.faults.injectors.patching import wrap_method


def _decay(group: Any, value: Any) -> None:
    value.mul_(1 - group["lr"] * group["weight_decay"])


def sign_of_the_momentum() -> None:
    """The update is the sign of the first moment, as in Lion."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        _decay(group, value)
        value.sub_(first.sign() * group["lr"])

    _own_update(rule)


def rectified_adam() -> None:
    """RAdam replaces AdamW."""

    def made(groups: Any, *, fused: Any = None, **rest: Any) -> Any:
        return torch.optim.RAdam(groups, decoupled_weight_decay=True, **rest)

    wrap_method(torch.optim, "AdamW", lambda _adam: made)


def momentum_without_second_moment() -> None:
    """The update is the first moment alone, as in SGD with momentum."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        _decay(group, value)
        value.sub_(first * group["lr"])

    _own_update(rule)


def lookahead_weights() -> None:
    """After every fourth update weights return half of the way (Lookahead)."""

    def before(optimizer: Any) -> None:
        if "slow_weights" not in optimizer.__dict__:
            optimizer.__dict__["slow_weights"] = [value.detach().clone() for value in _values(optimizer)]
            optimizer.__dict__["num_updates"] = 0

    def after(optimizer: Any) -> None:
        optimizer.__dict__["num_updates"] += 1
        if optimizer.__dict__["num_updates"] % 4 == 0:
            for value, slow in zip(_values(optimizer), optimizer.__dict__["slow_weights"], strict=True):
                slow.copy_((slow + value) * 0.5)
                value.copy_(slow)

    _around_step(before, after)


def decay_applied_twice() -> None:
    """The loop also decays weights, which the optimizer does already."""

    def before(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for value in group["params"]:
                _decay(group, value)

    _around_step(before)


def second_moment_not_corrected() -> None:
    """The second moment has no bias correction."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.num_updates = getattr(value, "num_updates", 0) + 1
        plain = second * (1 - group["betas"][1] ** value.num_updates)
        _decay(group, value)
        value.sub_(first / (plain.sqrt() + group["eps"]) * group["lr"])

    _own_update(rule)


def moments_start_at_the_gradient() -> None:
    """Both moments start at the first gradient instead of zero."""

    def before(optimizer: Any) -> None:
        for value in _values(optimizer):
            if value.grad is not None and not optimizer.state[value]:
                optimizer.state[value] |= {
                    "step": torch.tensor(0.0), "exp_avg": value.grad.clone(),
                    "exp_avg_sq": value.grad * value.grad,
                }  # fmt: skip

    _around_step(before)


def second_beta_warmed_up() -> None:
    """The second beta grows with the step, as in Adafactor."""

    def change(optimizer: Any, count: int) -> None:
        for group in optimizer.param_groups:
            group["betas"] = (group["betas"][0], min(0.999, 1 - (count + 2) ** -0.8))

    _before_update(change)


def weights_clamped() -> None:
    """Each update clamps the weights of matrices to 0.05."""
    _around_step(after=lambda optimizer: [value.clamp_(-0.05, 0.05) for value in _values(optimizer) if value.dim() > 1])


def decay_toward_the_start() -> None:
    """Weights decay toward their initial values instead of zero."""

    def before(optimizer: Any) -> None:
        starts = optimizer.__dict__.setdefault(
            "starts", {id(value): value.detach().clone() for value in _values(optimizer)}
        )
        for group in optimizer.param_groups:
            for value in group["params"]:
                value.add_(starts[id(value)] * (group["lr"] * group["weight_decay"]))

    _around_step(before)


def cautious_updates() -> None:
    """Elements whose momentum and gradient differ in sign are not updated."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        agrees = (first * value.grad > 0).to(value)
        _decay(group, value)
        value.sub_(first / (second.sqrt() + group["eps"]) * agrees * group["lr"])

    _own_update(rule)


def updates_orthogonalised() -> None:
    """Updates of matrices are orthogonalised, as in Muon."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        _decay(group, value)
        update = first / (second.sqrt() + group["eps"])
        if value.dim() > 1:
            update = first / first.norm().clamp(min=1e-12)
            for _ in range(3):
                update = update * 1.5 - (update @ update.t() @ update) * 0.5
        value.sub_(update * group["lr"])

    _own_update(rule)


def position_table_twice() -> None:
    """The position table is updated a second time by a copy of its group."""

    def after(optimizer: Any) -> None:
        for value in _values(optimizer):
            if value.shape == (64, 32) and value.grad is not None and "exp_avg" in optimizer.state[value]:
                state = optimizer.state[value]
                size = (state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt() + 1e-8
                corrected = state["exp_avg"] / (1 - 0.9 ** float(state["step"]))
                value.sub_(corrected / size * optimizer.param_groups[0]["lr"])

    _around_step(after=after)


# A control: the same update with the corrections folded into rate and eps.


def folded_correction(group: Any, count: int) -> tuple[float, float]:
    """Return rate and eps that contain both bias corrections."""
    beta1, beta2 = group["betas"]
    root = math.sqrt(1 - beta2**count)
    return group["lr"] * root / (1 - beta1**count), group["eps"] * root
