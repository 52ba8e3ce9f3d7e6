"""Experiment on the learning curve: its first steps again, with values restored or steps traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plumbline.errors import InvalidInputError
from plumbline.schema.evidence import TraceEvidence
from plumbline.schema.spec import LearnSpec
from plumbline.train.context import Context
from plumbline.train.dropout import PortableDropout
from plumbline.train.engine import Engine
from plumbline.train.evaluation import evaluate_by_definition
from plumbline.train.learn import LearnRun
from plumbline.train.optimizers import schedule_factor
from plumbline.train.replay import Bundle
from plumbline.train.trace import TraceRun

MAX_TRACED = 200
"""Maximum number of traced steps: that of a probe."""


class LearnExperiment(LearnRun):
    """Learning curve up to a step; never resumed."""

    def __init__(self, context: Context, learn: LearnSpec, bundle: Bundle) -> None:
        experiment = bundle.experiment
        learn = learn.replace(
            precision=experiment.precision or learn.precision, attention=experiment.attention or learn.attention
        )
        super().__init__(context, learn)
        self.until = min(experiment.steps, learn.steps)
        self._bundle = bundle
        self.traced: TraceRun | None = None
        if experiment.trace is not None:
            if not 0 < self.until - experiment.trace <= MAX_TRACED:
                text = f"is {experiment.trace}, not 1 to {MAX_TRACED} steps before the experiment's end at {self.until}"
                raise InvalidInputError(text, where="experiment", key="trace")
            self.traced = TraceRun(context, learn, bundle, first=experiment.trace, until=self.until)

    def _engine(self) -> Engine:
        engine = super()._engine()
        if self.traced:
            self.traced.attach(engine)
        return engine

    def run(self) -> None:
        """Train up to the experiment's last step."""
        super().run()
        if self.traced:
            self.traced.finish()

    def _make_legs(self) -> None:
        """Return no legs: an experiment has the bits of its training, and shows them step by step."""

    def _make_watch(self, engine: Engine) -> None:
        """Return no watch: an experiment changes the state, and its trace shows it."""

    def _starts(self, engine: Engine, step: int) -> None:
        if self._bundle.has("schedule"):
            spec = self.context.spec
            for group in engine.optimizer.param_groups:
                group["lr"] = spec.optimizer.learning_rate * schedule_factor(spec.schedule, step, engine.steps)
        if self._bundle.has("dropout"):
            for layer in engine.bare.modules():
                if isinstance(layer, (torch.nn.Dropout, PortableDropout)):
                    layer.p = self.learn.dropout

    def _evaluator(self) -> Callable[..., Any]:
        return evaluate_by_definition if self._bundle.has("evaluation") else super()._evaluator()

    def trace(self) -> TraceEvidence | None:
        """Return the evidence of the traced steps that is not the probe's."""
        return self.traced.trace() if self.traced else None
