"""Experiments: rerun the probe with one of the reference's values restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.spec import ProbeSpec, RunSpec
from plumbline.schema.stage import Stage
from plumbline.train.batches import Batch
from plumbline.train.context import Context
from plumbline.train.engine import Engine, Observer
from plumbline.train.evaluation import evaluate, evaluate_by_definition
from plumbline.train.numerics import apply_settings, restore_states
from plumbline.train.optimizers import schedule_factor
from plumbline.train.probe import ProbeRun
from plumbline.train.proof.definitions import AdamW
from plumbline.train.replay import Bundle, Keeper, check_shape, imposed
from plumbline.train.watch.calls import ModuleCalls
from plumbline.train.watch.recorder import named_gradients


def experiment_probe(probe: ProbeSpec, bundle: Bundle) -> ProbeSpec:
    """Return the experiment's probe settings: taps for captures, windows on request."""
    experiment = bundle.experiment
    steps = sorted({*probe.tap_steps, *(capture.step for capture in experiment.captures)})
    return probe.replace(
        precision=experiment.precision or probe.precision,
        tap_steps=tuple(steps),
        portable_steps=probe.portable_steps if experiment.portable else 0,
    )


def use_schedule(engine: Engine, step: int) -> None:
    """Set the learning rate of a step by the schedule's definition."""
    spec = engine.spec
    for group in engine.optimizer.param_groups:
        group["lr"] = spec.optimizer.learning_rate * schedule_factor(spec.schedule, step, engine.steps)


class Intervention(Observer):
    """Observer that restores values before its members run."""

    def __init__(self, engine: Engine, bundle: Bundle, probe: ProbeSpec, *members: Observer) -> None:
        super().__init__(*members)
        self._engine, self._bundle, self._probe = engine, bundle, probe
        self._step = self._first_row = 0
        self._outputs: dict[str, torch.Tensor] = {}
        self._calls = ModuleCalls(self._imposed)
        if bundle.has("forward"):
            self._calls.hook(engine.bare)
        self._adamw = AdamW(engine.bare, engine.spec.optimizer) if bundle.has("optimizer") else None
        updated = {id(value) for group in engine.optimizer.param_groups for value in group["params"]}
        self._not_updated = [value for value in engine.bare.parameters() if id(value) not in updated]

    def _imposed(self, name: str, _module: nn.Module, _inputs: Any, value: torch.Tensor) -> torch.Tensor | None:
        """Return the output to impose on a module call, if any."""
        wanted = self._outputs.get(name)
        if wanted is None:
            return None
        if wanted.shape[0] != value.shape[0]:
            wanted = wanted[self._first_row : self._first_row + value.shape[0]]
        return imposed(f"forward of {name}", value, wanted)

    def _put_weights(self, step: int) -> None:
        parameters = dict(self._engine.bare.named_parameters())
        for replay, tensors in self._bundle.replays("weights"):
            if (replay.step or 0) != step:
                continue
            for name, value in tensors.items():
                if name in parameters and (not replay.fields or name in replay.fields):
                    check_shape(f"weights of {name}", value, parameters[name])
                    parameters[name].data.copy_(value)

    def starts(self, step: int) -> None:
        """Restore settings, weights, random states and learning rates before the step."""
        bundle, engine = self._bundle, self._engine
        self._step = step
        if bundle.has("settings"):
            apply_settings(self._probe.precision, strict=True, part="probe")
        if self._adamw is not None:
            # The run's optimizer clears the gradients that it knows; the definition updates all parameters.
            for value in self._not_updated:
                value.grad = None
        self._put_weights(step)
        packed = bundle.rng(step)
        if packed is not None:
            restore_states(packed)
        if bundle.has("schedule"):
            use_schedule(engine, step)
        self._outputs = bundle.tensors("forward", step)
        super().starts(step)

    def batch(self, batch: Batch) -> Batch:
        """Return the batch with fields replaced by the reference's."""
        replaced = dict(batch)
        for replay, tensors in self._bundle.replays("batch", self._step):
            for name in replay.fields or BATCH_FIELDS:
                if name not in tensors or self._step >= len(tensors[name]):
                    raise InvalidInputError(f"does not contain {name} of step {self._step}", where=str(replay.source))
                value = tensors[name][self._step].to(torch.int64)
                check_shape(name, value, batch[name])
                replaced[name] = value
        return replaced

    def feeds(self, local: Batch, first_row: int) -> None:
        """Record the micro-batch's rows, to slice imposed outputs."""
        super().feeds(local, first_row)
        self._first_row = first_row
        self._calls.feeds()

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss, recomputed by its definition if the experiment says so."""
        if self._bundle.has("loss"):
            logits = outputs.logits
            return self._engine.task.defined_loss(logits if logits.dtype == torch.float64 else logits.float(), labels)
        return super().loss(outputs, labels)

    def _impose_gradients(self, stage: Stage) -> None:
        gradients = named_gradients(self._engine.bare)
        for name, value in self._bundle.tensors(stage, self._step).items():
            if name not in gradients:
                raise InvalidInputError("has no gradient here", where="experiment", key=name)
            check_shape(f"{stage} of {name}", value, gradients[name])
            gradients[name].copy_(value)

    def backward_done(self) -> None:
        """Impose the reference's gradients before clipping."""
        self._impose_gradients("gradient")
        super().backward_done()

    def clipped(self) -> None:
        """Impose the reference's gradients after clipping."""
        self._impose_gradients("clipped")
        super().clipped()

    def update(self) -> bool:
        """Update weights by AdamW's definition if the experiment restores the optimizer."""
        if self._adamw is None:
            return False
        self._adamw.step(float(self._engine.optimizer.param_groups[0]["lr"]))
        return True


class ExperimentRun(ProbeRun):
    """Rerun of the probe's first steps for an experiment."""

    def __init__(self, context: Context, probe: ProbeSpec, bundle: Bundle) -> None:
        super().__init__(context, experiment_probe(probe, bundle))
        self.steps = min(bundle.experiment.steps, probe.steps)
        self._bundle = bundle
        self.keeper = Keeper(bundle.experiment.captures)

    def _fit(self, model: nn.Module, spec: RunSpec) -> None:
        """Disable activation checkpointing if the experiment imposes module outputs."""
        if not self._bundle.has("forward"):
            super()._fit(model, spec)

    def _changed(self, engine: Engine, recorder: Observer) -> Observer:
        return Intervention(engine, self._bundle, self.probe, recorder)

    def _evaluator(self) -> Callable[..., Any]:
        return evaluate_by_definition if self._bundle.has("evaluation") else evaluate

    def arrays(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the probe's arrays and the captured tensors."""
        return super().arrays() | ({"capture": self.keeper.arrays} if self.keeper.arrays else {})
