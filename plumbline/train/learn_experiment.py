"""Experiment on the learning curve: traced or with values restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import TraceEvidence
from plumbline.schema.spec import LearnSpec, ProbeSpec
from plumbline.train.context import Context
from plumbline.train.dropout import PortableDropout
from plumbline.train.engine import Engine
from plumbline.train.evaluation import evaluate_by_definition
from plumbline.train.experiment import ExperimentRun, use_schedule
from plumbline.train.learn import LearnRun
from plumbline.train.model import describe_model
from plumbline.train.optimizers import describe_optimizer
from plumbline.train.replay import Bundle
from plumbline.train.taps import DropoutDraws
from plumbline.train.trail import WeightsTrail

MAX_TRACED = 200
"""Maximum number of traced steps: that of a probe."""


class TraceRun(ExperimentRun):
    """Recorder of full evidence for a learning curve's steps."""

    def __init__(self, context: Context, learn: LearnSpec, bundle: Bundle, *, first: int, until: int) -> None:
        count = until - first
        probe = ProbeSpec(
            steps=count, precision=learn.precision, attention=learn.attention, tap_steps=tuple(range(count)),
            portable_steps=0,
        )  # fmt: skip
        super().__init__(context, probe, bundle)
        self.steps, self._first = count, first
        self._dropout = self._drawn = DropoutDraws(context.ranks)
        self._trail: WeightsTrail | None = None

    def attach(self, engine: Engine) -> None:
        """Describe the model before the first step."""
        self.model_evidence = describe_model(engine.bare)
        self._found["optimizer"] = describe_optimizer(engine.bare, engine.optimizer)
        self._trail = WeightsTrail(engine.bare)

    def starts(self, engine: Engine, step: int) -> None:
        """Record weights before each step, and observe traced steps."""
        self.finish()
        if step == self._first:
            self._observe(engine)

    def finish(self) -> None:
        """Record the checksum of the current weights."""
        if self._trail:
            self._trail.add()

    def trace(self) -> TraceEvidence | None:
        """Return the weights checksums and dropout masks of the traced steps."""
        if self._trail is None:
            return None
        return TraceEvidence(first=self._first, weights=self._trail.digests(), draws=tuple(self._drawn.draws))


class LearnExperiment(LearnRun):
    """Rerun of a learning curve up to a given step, without resuming."""

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

    def _proven(self) -> tuple[int, ...]:
        return ()

    def _make_windows(self) -> None:
        """Disable portable repetitions, which an experiment does not need."""

    def _make_watch(self, engine: Engine) -> None:
        """Disable the state watch, as an experiment changes the state itself."""

    def _starts(self, engine: Engine, step: int) -> None:
        if self.traced:
            self.traced.starts(engine, step)
        if self._bundle.has("schedule"):
            use_schedule(engine, step)
        if self._bundle.has("dropout"):
            for layer in engine.bare.modules():
                if isinstance(layer, (torch.nn.Dropout, PortableDropout)):
                    layer.p = self.learn.dropout

    def _evaluator(self) -> Callable[..., Any]:
        return evaluate_by_definition if self._bundle.has("evaluation") else super()._evaluator()

    def trace(self) -> TraceEvidence | None:
        """Return the traced steps' evidence, if any."""
        return self.traced.trace() if self.traced else None
