"""Save and restore an engine's state around a check of single steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from plumbline.schema.spec import OptimizerSpec
from plumbline.train.engine import Clock, Engine, Observer
from plumbline.train.models.model import named_once
from plumbline.train.numerics import pack_states, read_states, restore_states
from plumbline.train.ranks import Ranks

_MOMENT = 2.0**-8
"""Factor of a weight in its moments: a power of two, so that the product is exact."""
_LOSS_SCALE = 1024.0
_LEAST_DECAY, _HIGHEST_RATE = 64 * 2.0**-24, 0.01
"""Minimum of learning rate times weight decay, and the highest rate that is raised to it."""
_COUNT = 100.0
"""Steps that the optimizer has counted, where the training's own count is the machine's."""


def shown_rate(spec: OptimizerSpec) -> float:
    """Return a learning rate large enough that weight decay exceeds rounding."""
    decay = spec.weight_decay
    return max(spec.learning_rate, min(_LEAST_DECAY / decay, _HIGHEST_RATE) if decay else 0.0)


@dataclass(frozen=True)
class Start:
    """Fixed state from which every check of a single step starts."""

    weights: Mapping[str, torch.Tensor]
    """The shipped weights."""
    learning_rate: float | None = None
    """Rate of all groups, where the number of steps before is the machine's own; `None`: the schedule's."""
    is_double: bool = False
    """Whether the weights are in fp64."""


@contextlib.contextmanager
def borrowed(engine: Engine, start: Start, ranks: Ranks, observer: Observer) -> Iterator[None]:
    """Temporarily set the engine to state `start`, then restore the training's state.

    The training's tensors are set aside, not copied: the code inside cannot change one of them.
    """
    with _in_double(engine) if start.is_double else contextlib.nullcontext(), _imposed(engine, start, ranks, observer):
        yield


@contextlib.contextmanager
def _in_double(engine: Engine) -> Iterator[None]:
    """Temporarily replace parameters and buffers by copies in fp64.

    A parameter of another format would lose the hooks by which DDP exchanges its gradient.
    """
    copies: dict[torch.Tensor, Any] = {
        value: nn.Parameter(value.detach().double(), value.requires_grad) for value in engine.bare.parameters()
    }
    copies |= {value: value.double() for value in engine.bare.buffers() if value.is_floating_point()}
    places = [
        (module, name, value)
        for module in engine.bare.modules()
        for values in (module.named_parameters, module.named_buffers)
        for name, value in values(recurse=False, remove_duplicate=False)
        if value in copies
    ]
    optimizer, state = engine.optimizer, dict(engine.optimizer.state)
    groups = [group["params"] for group in optimizer.param_groups]
    try:
        for module, name, value in places:
            setattr(module, name, copies[value])
        for group in optimizer.param_groups:
            group["params"] = [copies[value] for value in group["params"]]
        optimizer.state.clear()
        optimizer.state.update(
            {copies[value]: {key: _double(entry) for key, entry in entries.items()} for value, entries in state.items()}
        )
        yield
    finally:
        for module, name, value in places:
            setattr(module, name, value)
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            group["params"] = values
        optimizer.state.clear()
        optimizer.state.update(state)


def _double(entry: Any) -> Any:
    return entry.double() if isinstance(entry, torch.Tensor) and entry.dim() else entry


@contextlib.contextmanager
def _imposed(engine: Engine, start: Start, ranks: Ranks, observer: Observer) -> Iterator[None]:
    generators, parameters = read_states(), named_once(engine.bare)
    data = {name: value.data for name, value in parameters.items()}
    states = {value: dict(state) for value, state in engine.optimizer.state.items()}
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in engine.optimizer.param_groups
    ]
    schedule, attributes = dict(vars(engine.schedule)), frozenset(vars(engine.optimizer))
    live = engine.ranks, engine.model, engine.observer, engine.clock, engine.scaler
    modes = {module: module.training for module in engine.bare.modules()}
    try:
        engine.ranks, engine.model, engine.observer, engine.clock = ranks, engine.bare, observer, Clock()
        _impose(engine, start, parameters, states)
        if engine.scaler:  # a new one, as an interrupted step leaves its state behind
            engine.scaler = torch.amp.GradScaler(engine.ranks.device.type, init_scale=_LOSS_SCALE)
        yield
    finally:
        engine.ranks, engine.model, engine.observer, engine.clock, engine.scaler = live
        for name, value in parameters.items():
            value.data, value.grad = data[name], None
        # Loss scaling leaves its scale in an optimizer whose step fails.
        for name in vars(engine.optimizer).keys() - attributes:
            delattr(engine.optimizer, name)
        engine.optimizer.state.clear()
        engine.optimizer.state.update(states)
        for group, saved in zip(engine.optimizer.param_groups, groups, strict=True):
            group.update(saved)
        vars(engine.schedule).update(schedule)
        for module, mode in modes.items():
            module.training = mode
        drawn = {name for name, state in read_states().items() if state != generators.get(name)}
        restore_states(pack_states({name: state for name, state in generators.items() if name in drawn}))


def _impose(
    engine: Engine,
    start: Start,
    parameters: Mapping[str, nn.Parameter],
    states: Mapping[torch.Tensor, dict[str, Any]],
) -> None:
    """Set weights, learning rates and optimizer state to the fixed start values."""
    for group in engine.optimizer.param_groups if start.learning_rate is not None else ():
        group["lr"] = start.learning_rate
    for name, value in parameters.items():
        shipped = start.weights[name].to(device=value.device, dtype=value.dtype, copy=True)
        if value in states:
            engine.optimizer.state[value] = {
                key: _entry(key, entry, shipped, start) for key, entry in states[value].items()
            }
        value.data = shipped


def _entry(key: str, entry: Any, shipped: torch.Tensor, start: Start) -> Any:
    """Return a fixed start value for one optimizer-state entry of a parameter."""
    if not isinstance(entry, torch.Tensor):
        return entry
    if not entry.dim():
        return entry.clone() if start.learning_rate is None else torch.full_like(entry, _COUNT)
    small = shipped * _MOMENT
    if entry.shape != shipped.shape:
        return torch.full_like(entry, _MOMENT**2)
    return (small * small if "sq" in key else small).to(entry.dtype)
