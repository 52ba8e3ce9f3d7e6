"""Fourth held-out set: faults of optimizer and schedule."""

from __future__ import annotations

import copy
import math
from typing import Any

from bench.faults.injectors.held_out_training import _before_update, _own_update
from bench.faults.injectors.training import _factor, _made

# Optimizer.


def trust_ratio() -> None:
    """LAMB scales each tensor's update by a ratio of norms."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        update = first / (second.sqrt() + group["eps"]) + value * group["weight_decay"]
        sizes = float(value.norm()), float(update.norm())
        value.sub_(update * (group["lr"] * (sizes[0] / sizes[1] if min(sizes) else 1.0)))

    _own_update(rule)


def second_moment_factored() -> None:
    """Adafactor keeps row and column means of the second moment."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        if value.dim() > 1:
            rows, columns = second.mean(-1, keepdim=True), second.mean(0, keepdim=True)
            second = rows * columns / rows.mean().clamp(min=1e-30)
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.sub_(first / (second.sqrt() + group["eps"]) * group["lr"])

    _own_update(rule)


def embeddings_not_decayed() -> None:
    """Embedding tables are in the group without weight decay."""

    def change(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            tables = {id(value) for name, value in model.named_parameters() if name.endswith("embeddings.weight")}
            decayed, other = optimizer.param_groups
            other["params"] += [value for value in decayed["params"] if id(value) in tables]
            decayed["params"] = [value for value in decayed["params"] if id(value) not in tables]
            return optimizer

        return made

    _made(change)


def head_missing_from_the_optimizer() -> None:
    """The optimizer's groups lack the classifier (facebookresearch/mmf#104)."""

    def change(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            head = {id(value) for value in model.classifier.parameters()}
            for group in optimizer.param_groups:
                group["params"] = [value for value in group["params"] if id(value) not in head]
            return optimizer

        return made

    _made(change)


def optimizer_of_a_copy() -> None:
    """The optimizer updates a copy of the model (pytorch/pytorch#14467)."""
    _made(lambda make: lambda model, spec, **rest: make(copy.deepcopy(model), spec, **rest))


def bias_correction_counts_twice() -> None:
    """The step counter of the bias correction advances twice per update (deepspeedai/DeepSpeed#1823)."""

    def change(optimizer: Any, _count: int) -> None:
        for state in optimizer.state.values():
            state["step"] += 1

    _before_update(change)


def rows_without_gradient_skipped() -> None:
    """The optimizer skips table rows whose gradient is zero (pytorch/pytorch#18404)."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        used = (value.grad != 0).any(-1, keepdim=True).to(value) if value.dim() > 1 else 1.0
        value.sub_(value * used * (group["lr"] * group["weight_decay"]))
        value.sub_(first / (second.sqrt() + group["eps"]) * used * group["lr"])

    _own_update(rule)


def states_exchanged_by_a_restart() -> None:
    """A restart at the seventh step exchanges two parameters' moments (Lightning-AI/pytorch-lightning#17025)."""

    def change(optimizer: Any, count: int) -> None:
        if count == 6:
            alike = [value for value in optimizer.param_groups[0]["params"] if value.shape == (32, 32)]
            first, second = alike[:2]
            optimizer.state[first], optimizer.state[second] = optimizer.state[second], optimizer.state[first]

    _before_update(change)


def first_moment_in_eight_bits() -> None:
    """The first moment is kept in eight bits per value, as bitsandbytes does."""

    def change(optimizer: Any, _count: int) -> None:
        for state in optimizer.state.values():
            unit = state["exp_avg"].abs().amax().clamp(min=1e-30) / 127
            state["exp_avg"].copy_((state["exp_avg"] / unit).round() * unit)

    _before_update(change)


def epsilon_before_the_correction() -> None:
    """Eps is added before the bias correction, as TensorFlow's Adam does."""

    def change(optimizer: Any, count: int) -> None:
        for group in optimizer.param_groups:
            plain = group.setdefault("plain_eps", group["eps"])
            group["eps"] = plain / math.sqrt(1 - group["betas"][1] ** (count + 1))

    _before_update(change)


# Schedule.


def inverse_square_root() -> None:
    """The rate falls with the inverse square root of the step, as in fairseq."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: factor(schedule, step, steps) if step < 2 else math.sqrt(3 / (step + 1))
        )
    )


def stepped_every_second_update() -> None:
    """The schedule advances at every second update (huggingface/accelerate#963)."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step // 2, steps))


def one_step_at_the_full_rate() -> None:
    """A restart trains its first step at the initial rate (pytorch/pytorch#171515)."""
    _factor(lambda factor: lambda schedule, step, steps: 1.0 if step == 6 else factor(schedule, step, steps))


def decay_to_a_tenth() -> None:
    """The rate falls in a line to a tenth instead of zero."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: (
                factor(schedule, step, steps) if step < 2 else 0.1 + 0.9 * factor(schedule, step, steps)
            )
        )
    )


def constant_then_steep() -> None:
    """The rate stays constant for two thirds and then falls to zero."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: (
                factor(schedule, step, steps) if step < 2 else min(1.0, 3 * (steps - step) / steps)
            )
        )
    )


def biases_at_twice_the_rate() -> None:
    """The group without weight decay has twice the learning rate."""

    def change(make: Any) -> Any:
        def made(*args: Any, **rest: Any) -> Any:
            optimizer = make(*args, **rest)
            optimizer.param_groups[1]["lr"] *= 2
            return optimizer

        return made

    _made(change)
