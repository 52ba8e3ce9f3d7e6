"""Sixth held-out set: faults of the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import adamw

from bench.faults.injectors.held_out_fifth.updates import _decay
from bench.faults.injectors.held_out_training import _before_update, _own_update
from bench.faults.injectors.training import _made


def belief_in_the_second_moment() -> None:
    """A library's second moment measures the distance from the first (AdaBelief)."""

    @torch.no_grad()
    def step(self: Any, _closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state |= {
                        "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(value),
                        "exp_avg_sq": torch.zeros_like(value),
                    }  # fmt: skip
                state["step"] += 1
                count = float(state["step"])
                first = state["exp_avg"].mul_(beta1).add_(value.grad, alpha=1 - beta1)
                distance = value.grad - first
                second = state["exp_avg_sq"].mul_(beta2).addcmul_(distance, distance, value=1 - beta2)
                size = (second / (1 - beta2**count)).sqrt() + group["eps"]
                _decay(group, value)
                value.sub_(first / (1 - beta1**count) / size * group["lr"])

    adamw.AdamW.step = step


def momentum_cycled() -> None:
    """A recipe lowers the first beta from 0.95 to 0.85 over twelve steps, as one-cycle schedules do."""

    def change(optimizer: Any, count: int) -> None:
        for group in optimizer.param_groups:
            group["betas"] = (0.95 - 0.1 * min(1.0, count / 11), group["betas"][1])

    _before_update(change)


def no_decay_list_matches_too_much() -> None:
    """A list of names without decay contains "output", which also matches matrices."""

    def change(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            decayed, plain = optimizer.param_groups[:2]
            spared = {id(value) for name, value in model.named_parameters() if "output" in name}
            plain["params"] += [value for value in decayed["params"] if id(value) in spared]
            decayed["params"] = [value for value in decayed["params"] if id(value) not in spared]
            return optimizer

        return made

    _made(change)


def updates_clipped_by_their_size() -> None:
    """A library limits the root mean square of each tensor's update to one half, as Adafactor does."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        update = first / (second.sqrt() + group["eps"])
        size = (update * update).mean().sqrt()
        _decay(group, value)
        value.sub_(update / (size * 2).clamp(min=1.0) * group["lr"])

    _own_update(rule)


def decay_only_where_signs_agree() -> None:
    """A library decays only weights that the update also moves toward zero (cautious decay)."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        update = first / (second.sqrt() + group["eps"])
        agrees = (update * value > 0).to(value)
        value.sub_(value * agrees * (group["lr"] * group["weight_decay"]))
        value.sub_(update * group["lr"])

    _own_update(rule)


def first_moment_not_corrected() -> None:
    """A port corrects the bias of the second moment and forgets the first."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.num_updates = getattr(value, "num_updates", 0) + 1
        plain = first * (1 - group["betas"][0] ** value.num_updates)
        _decay(group, value)
        value.sub_(plain / (second.sqrt() + group["eps"]) * group["lr"])

    _own_update(rule)


def decay_at_every_fourth_update() -> None:
    """A fused optimizer applies weight decay at every fourth update only, to save memory traffic."""

    def change(optimizer: Any, count: int) -> None:
        if "decays" not in optimizer.__dict__:
            optimizer.__dict__["decays"] = [group["weight_decay"] for group in optimizer.param_groups]
        for group, decay in zip(optimizer.param_groups, optimizer.__dict__["decays"], strict=True):
            group["weight_decay"] = decay if count % 4 == 3 else 0.0

    _before_update(change)
