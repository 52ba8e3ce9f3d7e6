"""A loop that runs again: the reference keeps the values of one suspect, and the candidate gets them.

The worker names the experiment's folder in PLUMBLINE_EXPERIMENT. A step begins where `run.step` ended the one before,
so that what the loop draws for its batch is a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from plumbline.schema.stage import Stage
from plumbline.train.capture.loop import Loop
from plumbline.train.capture.tensors import arguments, named_tensors
from plumbline.train.digests import host_array
from plumbline.train.numerics import pack_states, read_states, restore_states
from plumbline.train.optimizers import held_by
from plumbline.train.replay import Bundle, Keeper, check_shape, imposed
from plumbline.train.watch.calls import ModuleCalls

_STATES = "state"


@torch.no_grad()
def _overwrite(stage: Stage, tensors: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> None:
    """Overwrite tensors by the wanted ones of equal names."""
    for name in wanted.keys() & tensors.keys():
        check_shape(f"{stage} of {name}", wanted[name], tensors[name])
        tensors[name].copy_(wanted[name])


class Rerun:
    """Values of an experiment, kept or imposed by hooks on the loop's models and optimizers."""

    def __init__(self, run: Loop, bundle: Bundle) -> None:
        self._run, self._bundle, self._step = run, bundle, 0
        self.experiment = bundle.experiment
        self.keeper = Keeper(bundle.experiment.captures)
        self._calls = ModuleCalls(self._leaves, lambda: run.is_aside)
        self._outputs: dict[str, torch.Tensor] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hook modules, parameters and optimizers within the context."""
        with ExitStack() as hooks:
            enter = hooks.enter_context
            if self._has("forward"):
                enter(self._calls.hook(self._run.model))
            for name, value in self._run.model.named_parameters() if self._has("gradient") else ():
                enter(value.register_post_accumulate_grad_hook(partial(self._accumulates, name)))
            for optimizer in self._run.optimizers:
                enter(optimizer.register_step_pre_hook(self._updates))
                enter(optimizer.register_step_post_hook(self._updated))
            self.begins(0)
            yield

    def _has(self, stage: Stage) -> bool:
        return self._bundle.has(stage) or any(capture.stage == stage for capture in self.experiment.captures)

    def _exchange(self, stage: Stage, tensors: Mapping[str, torch.Tensor]) -> None:
        """Keep tensors of this step, or overwrite them."""
        self.keeper.keep_all(stage, self._step, tensors)
        _overwrite(stage, tensors, self._bundle.tensors(stage, self._step))

    def begins(self, step: int) -> None:
        """Begin a step: weights before the first one, and the generators from which its batch is drawn."""
        self._step = step
        self._calls.feeds()
        if not step and self._has("weights"):
            parameters = {name: value.data for name, value in self._run.model.named_parameters()}
            self.keeper.keep_all("weights", 0, parameters)
            for _, wanted in self._bundle.replays("weights", 0):
                _overwrite("weights", parameters, wanted)
        if self.keeper.wants("rng", step, _STATES):
            self.keeper.keep("rng", step, _STATES, pack_states(read_states()))
        if (packed := self._bundle.tensors("rng", step).get(_STATES)) is not None:
            restore_states(packed.numpy())
        self._outputs = self._bundle.tensors("forward", step)

    def enters(self, module: nn.Module, given: Any, named: Any) -> None:
        """Keep or overwrite the float tensors that a model is given."""
        if self._has("batch"):
            each = named_tensors(arguments(module.forward, given, named))
            self._exchange("batch", {name: value.detach() for name, value in each if value.is_floating_point()})

    def _leaves(self, name: str, _module: nn.Module, _inputs: Any, value: torch.Tensor) -> torch.Tensor | None:
        if self.keeper.wants("forward", self._step, name):
            self.keeper.keep("forward", self._step, name, host_array(value.detach()))
        wanted = self._outputs.get(name)
        return None if wanted is None else imposed(f"forward of {name}", value, wanted)

    def _accumulates(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._exchange("gradient", {name: parameter.grad})

    def _updates(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        """Handle the start of an update: clipped gradients, and rates."""
        if self._has("clipped"):
            held = self._held(optimizer).items()
            self._exchange("clipped", {name: value.grad for name, value in held if value.grad is not None})
        if self._has("schedule"):
            place = str(self._run.optimizers.index(optimizer))
            rates = torch.tensor([float(group["lr"]) for group in optimizer.param_groups], dtype=torch.float64)
            self._exchange("schedule", {place: rates})
            for group, rate in zip(optimizer.param_groups, rates.tolist(), strict=True):
                if float(group["lr"]) != rate:
                    group["lr"] = rate

    def _updated(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._has("optimizer"):
            self._exchange("optimizer", {name: value.data for name, value in self._held(optimizer).items()})

    def _held(self, optimizer: torch.optim.Optimizer) -> dict[str, nn.Parameter]:
        """Return the model's parameters that an optimizer holds, by name."""
        names = {value: name for name, value in self._run.model.named_parameters()}
        return {names[value]: value for value in held_by(optimizer) if value in names}
