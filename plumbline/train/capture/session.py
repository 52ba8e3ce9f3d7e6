"""Recorder of a loop that is a team's own: hooks on its models and optimizers, and one call a step.

A root's forward pass begins a step; its backward pass makes it a part of the training, and no evaluation. The hooks of
an optimizer show rates, gradients and update. Between the recorded steps only checksums and numbers are kept, on the
device. No hook raises into the training, and none changes a bit of it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from typing_extensions import Self

from plumbline.schema.captured import MAX_CAPTURED
from plumbline.schema.digest import digest_json
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.variables import EXPERIMENT, variable
from plumbline.train.capture.functions import called_functions
from plumbline.train.capture.identity import describe_program
from plumbline.train.capture.imposed import Rerun
from plumbline.train.capture.loop import Definition, Loop
from plumbline.train.capture.loss import check_definition
from plumbline.train.capture.record import write
from plumbline.train.capture.recorded import RecordedStep
from plumbline.train.capture.start import load_start
from plumbline.train.capture.steps import CapturedStep, Steps
from plumbline.train.capture.tensors import arguments
from plumbline.train.capture.window import fp64_pass
from plumbline.train.digests import digest_tensors
from plumbline.train.models.description import describe_model
from plumbline.train.ranks import Ranks
from plumbline.train.replay import read_bundle

_DRAWN = 2
"""Steps that are recorded in full beside the first one."""
_LONGEST_WAIT = timedelta(minutes=2)
"""For the last step of a process that holds a part of the model."""


def _drawn(draw: str, seed: int, steps: int) -> tuple[int, ...]:
    """Return the first step, and those that the round and the seed draw: the same on all platforms."""
    places = (1 + int(digest_json([draw, seed, place])[:8], 16) % (steps - 1) for place in range(_DRAWN) if steps > 1)
    return tuple(sorted({0, *places}))


def _bare(model: nn.Module) -> nn.Module:
    """Return the model inside of DistributedDataParallel and of a compiler."""
    inner = getattr(model, "_orig_mod", None) or (
        model.module if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)) else None
    )
    return _bare(inner) if isinstance(inner, nn.Module) else model


class Capture:
    """Recorder of a loop, as a context; `step` ends each of its steps, and the last one writes the record."""

    def __init__(
        self, folder: str | PathLike[str] | None, model: nn.Module | Mapping[str, nn.Module], optimizer: Any = None, *,
        steps: int, seed: int = 0, name: str = "mine", platform: str = "here", start: str | PathLike[str] | None = None,
        scaler: Any = None, config: Iterable[str | PathLike[str]] = (), rate: float | None = None,
        loss: Definition | None = None,
    ) -> None:  # fmt: skip
        """Prepare the recorder.

        Args:
            folder: Where the record is written; without it, the variable PLUMBLINE_RECORD says so.
            model: The model, or several by name.
            optimizer: One, several, or `None` for updates by hand, whose `rate` is given.
            steps: Number of updates to record; the loop may go on behind them.
            seed: The loop's own, a part of the training's name.
            name: The training's name: records of one name are compared.
            platform: Where it runs.
            start: File of start weights: the first training writes it, later ones begin with its values.
            scaler: A `GradScaler`, whose scale is divided out.
            config: Files of settings, which are suspects if they differ.
            rate: Learning rate of updates by hand.
            loss: Definition of the loss, `loss(outputs, batch)`: of what the model returns, and the batch that
                `step` is given, or without it the model's arguments by name. Recorded steps are proven by it.

        Raises `ConfigurationError` for arguments that cannot be meant.

        """
        if name_given := variable("PLUMBLINE_WORKLOAD"):  # by a suite, whose order the record answers
            folder, name = variable("PLUMBLINE_RECORD"), name_given
            steps, seed = int(variable("PLUMBLINE_STEPS")), int(variable("PLUMBLINE_SEED"))
        models = dict(model) if isinstance(model, Mapping) else {"": model}
        where = str(folder or variable("PLUMBLINE_RECORD"))
        optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer] if optimizer else []
        optimizers = [getattr(each, "optimizer", each) for each in optimizers]
        _check(where, models, optimizers, steps)
        check_definition(loss)
        bare = {key: _bare(each) for key, each in models.items()}
        whole = bare[""] if list(bare) == [""] else nn.ModuleDict(bare)
        experiment = variable(EXPERIMENT)
        self.loop = Loop(
            folder=Path(where), model=whole, optimizers=optimizers, asked=steps, seed=seed, name=name,
            platform=platform, scaler=scaler, rate=rate, identity=describe_program(whole, config), steps=steps,
            definition=loss, is_rerun=bool(experiment),
            is_replicated=any(isinstance(each, nn.parallel.DistributedDataParallel) for each in models.values()),
            is_compiled=any(hasattr(each, "_orig_mod") for each in models.values()),
            is_sharded=any(hasattr(value, "full_tensor") for value in whole.parameters()),
        )  # fmt: skip
        # A compiler would trace the hooks of a module inside.
        self._roots = {key: each if hasattr(each, "_orig_mod") else bare[key] for key, each in models.items()}
        self._recorded = () if self.loop.is_sharded else _drawn(variable("PLUMBLINE_ROUND"), seed, steps)
        self._rerun = Rerun(self.loop, read_bundle(Path(experiment))) if experiment else None
        if self._rerun is not None:  # the drawn steps stay those of the whole training
            self.loop.steps = min(steps, self._rerun.experiment.steps)
        self._start_file, self.is_done = start, False
        self._hooks, self._step_hooks = ExitStack(), ExitStack()
        self._step: CapturedStep | None = None
        self._full: RecordedStep | None = None
        self._num_calls: int | None = None
        """Calls of the closure that an optimizer is given; `None` outside of its update."""
        self._num_updating = 0
        """Updates under way: hooks run again for a class that calls its parent's update."""

    def __enter__(self) -> Self:
        """Hook models and optimizers, and describe what is trained."""
        run = self.loop
        run.ranks = self._join()
        run.start = load_start(run.model, self._start_file, run.ranks)
        run.described = describe_model(run.model)
        self.log = Steps(run)
        if run.is_sharded:
            run.unknown.setdefault("tensors and proofs: the weights are sharded")
        if run.is_compiled:
            run.unknown.setdefault("tensors and proofs of modules: the model is compiled")
        if self._rerun is not None:
            self._hooks.enter_context(self._rerun.hooked())  # before those that record
        for optimizer in run.optimizers:
            self._hooks.enter_context(optimizer.register_step_pre_hook(self._updates))
            self._hooks.enter_context(optimizer.register_step_post_hook(self._updated))
        self._prepare(0)
        return self

    def _join(self) -> Ranks:
        """Return the processes that train this model together: those which hold the same parameters."""
        parameters = dict(self.loop.model.named_parameters())
        device = next(iter(parameters.values())).device
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            return Ranks(device=device)
        control = dist.new_group(backend="gloo") if dist.get_backend() != "gloo" else None
        ranks = Ranks(dist.get_rank(), dist.get_world_size(), device, control)
        shapes = [[name, list(value.shape)] for name, value in parameters.items()]
        form = digest_json([shapes, self.loop.steps, len(self.loop.optimizers)])
        # Parts of a layer have equal shapes, and values of their own.
        are_replicas = self.loop.is_replicated or self.loop.is_sharded or self._start_file is not None
        own = (form, "" if are_replicas else digest_tensors(parameters))
        known = ranks.gather(own)
        if len(set(known)) == 1:
            return ranks
        if len({each for each, _ in known}) == 1:  # its own group: no collective of ours meets one of the loop's
            self.loop.parts = replace(ranks, control=dist.new_group(backend="gloo", timeout=_LONGEST_WAIT))
        self.loop.unknown.setdefault("exchange and other processes: each holds parameters of its own")
        return Ranks(rank=dist.get_rank(), device=device)

    def _prepare(self, step: int) -> None:
        """Hook the modules and parameters if the next step is recorded in full."""
        self._step_hooks.close()
        self._step_hooks, self._step, self._full = ExitStack(), None, None
        if step in self._recorded:
            with self.loop.aside("tensors"):
                # A loop's own updates are not seen.
                is_accumulating = bool(step and self.loop.optimizers) and not self.log.steps[-1].is_updated
                self._full = RecordedStep(self.loop, step, is_accumulating=is_accumulating)
                self._step_hooks.enter_context(self._full.hooked())
        for key, root in self._roots.items():  # around the hooks of the step, which see the root's own call
            enter = self._step_hooks.enter_context
            enter(root.register_forward_pre_hook(partial(self._enters, key), with_kwargs=True, prepend=True))
            enter(root.register_forward_hook(self._leaves, with_kwargs=True, always_call=True))

    @property
    def _is_off(self) -> bool:
        """Return whether a call is no part of the recorded training."""
        return self.is_done or self.loop.is_aside

    def _enters(self, key: str, module: nn.Module, given: Any, named: Any) -> None:
        if self._is_off:
            return
        if self._rerun is not None:
            self._rerun.enters(module, given, named)
        with self.loop.aside("a forward pass"):
            is_trained = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            if not is_trained:
                self.log.evaluated(module, given, named)
                if self._recorded and not self.loop.is_compiled:
                    self.log.first_evaluation.begins(self.loop.model, module)
                return
            if self._step is None:
                self._step = CapturedStep(self.loop, self.log)
                self._begin(module, given, named)
            if self._counts:
                self._step.enters(key, module, given, named)
                if self._full is not None:
                    self._full.feeds()

    @property
    def _counts(self) -> bool:
        """Return whether a call gives rows of the step: all but those of a closure that is called again."""
        return (self._num_calls or 0) <= 1

    def _begin(self, module: nn.Module, given: Any, named: Any) -> None:
        self.log.compare_state()
        if not self.log.num_steps and not self.loop.is_compiled and not self.loop.is_sharded:
            with self.loop.aside("a pass in fp64"):
                self.log.window = fp64_pass(module, given, named)
            with self.loop.aside("the functions of a pass"):
                self.log.functions = called_functions(module, given, named)

    def _leaves(self, module: nn.Module, given: Any, named: Any, output: Any) -> None:
        if self._is_off:
            return
        with self.loop.aside("a forward pass"):
            if not torch.is_grad_enabled():
                self.log.first_evaluation.ends()
            self.log.remember(output)
            if self._step is not None and torch.is_grad_enabled() and self._counts:
                if self._full is not None:
                    self._full.forward_done()
                    self._full.leaves(output, arguments(module.forward, given, named))
                self._step.leaves(output)

    def _updates(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Handle the start of an update: a closure is called as before, and the update begins behind its first call."""
        self._num_updating += 1
        if self._is_off or self._num_updating > 1:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # the first one is the optimizer
        if not callable(closure):
            self._begin_update(optimizer)
            return None
        self._num_calls, called = 0, partial(self._call, optimizer, closure)
        return ((args[0], called, *args[2:]), kwargs) if len(args) > 1 else (args, kwargs | {"closure": called})

    def _call(self, optimizer: Any, closure: Callable[[], Any]) -> Any:
        """Call a closure; rows and gradients of the first call are those of the step."""
        self._num_calls = (self._num_calls or 0) + 1
        loss = closure()
        if self._num_calls == 1:
            self._begin_update(optimizer)
        return loss

    def _begin_update(self, optimizer: Any) -> None:
        with self.loop.aside("an update"):
            if self._step is not None:
                if self._full is not None:
                    self._full.before_update(optimizer)
                self._step.updates(optimizer)

    def _updated(self, optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002 - a hook
        self._num_updating -= 1
        if self._num_updating:
            return
        self._num_calls = None
        if self._is_off or self._step is None:
            return
        with self.loop.aside("an update"):
            self._step.is_updated = True
            self._step.weigh()
            if self._full is not None:
                self._full.after_update(optimizer)
                self.log.kept = (self.log.num_steps + 1, self.log.whole())

    def step(self, batch: Any = None, loss: torch.Tensor | float | None = None) -> None:
        """End a step: call it once an update, with the batch and the loss where the model's own call hides them."""
        if self._is_off:
            return
        ended = time.perf_counter() - self.loop.began - self.loop.spent
        with self.loop.aside("a step"):
            if self._step is None:
                why = "no forward pass of the given model was seen: call the model itself, and no method of it"
                if why not in self.loop.unknown:
                    self.loop.unknown[why] = None
                    warnings.warn(f"plumbline.capture: {why}", stacklevel=2)
                return
            step, full = self._step, self._full
            step.ended = ended
            if not self.loop.optimizers:
                step.updates(None)
            step.ends(batch, loss)
            if full is not None:
                full.ends(batch, step.shown_loss)
                self.log.full.append(full)
            self.log.steps.append(step)
            self._num_calls, self._num_updating = None, 0
        if self.log.num_steps >= self.loop.steps:
            self._write(None)
        else:
            self._prepare(self.log.num_steps)
            if self._rerun is not None:
                self._rerun.begins(self.log.num_steps)

    def _write(self, error: BaseException | None) -> None:
        if self.is_done:
            return
        self.is_done = True
        self._step_hooks.close()
        self._hooks.close()
        write(self.log, error, self._rerun)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write the record of a loop that ended early or failed."""
        self._write(error)


def _check(folder: str, models: Mapping[str, Any], optimizers: Sequence[Any], steps: int) -> None:
    """Raise `ConfigurationError` for arguments that cannot be meant."""

    def wrong(key: str, why: str, hint: str) -> ConfigurationError:
        return ConfigurationError(why, where="capture", key=key, hint=hint)

    if not folder:
        raise wrong("folder", "no folder is given", "name one, or set PLUMBLINE_RECORD")
    if not models or not all(isinstance(each, nn.Module) for each in models.values()):
        raise wrong("model", "is no torch.nn.Module", "give the model, or a dictionary of models by name")
    if not 1 <= steps <= MAX_CAPTURED:
        raise wrong("steps", f"{steps} is not between 1 and {MAX_CAPTURED}", "name the number of updates to record")
    parameters = [value for each in models.values() for value in each.parameters()]
    if not parameters:
        raise wrong("model", "has no parameters", "give the model that is trained")
    if any(isinstance(value, nn.parameter.UninitializedParameter) for value in parameters):
        raise wrong("model", "has lazy parameters", "call the model once before it is captured")
    if any(value.device.type == "cpu" and value.is_shared() for value in parameters):
        raise wrong("model", "keeps its weights in shared memory", "captured is one process, or processes with DDP")
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise wrong("optimizer", f"{type(each).__name__} is no torch.optim.Optimizer", "give it, or None")
