"""Experiment on the learning curve: unchanged, or with definitions restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from plumbline.schema.spec import LearnSpec
from plumbline.train.context import Context
from plumbline.train.engine import Engine
from plumbline.train.evaluation import evaluate_by_definition
from plumbline.train.experiment import use_schedule
from plumbline.train.learn import LearnRun
from plumbline.train.models.dropout import PortableDropout
from plumbline.train.replay import Bundle


class LearnExperiment(LearnRun):
    """Rerun of a learning curve up to a given step, without resuming."""

    def __init__(self, context: Context, learn: LearnSpec, bundle: Bundle) -> None:
        experiment = bundle.experiment
        super().__init__(context, learn.replace(precision=experiment.precision or learn.precision))
        self.until = min(experiment.steps, learn.steps)
        self._bundle = bundle

    def _starts(self, engine: Engine, step: int) -> None:
        if self._bundle.has("schedule"):
            use_schedule(engine, step)
        if self._bundle.has("dropout"):
            for layer in engine.bare.modules():
                if isinstance(layer, (torch.nn.Dropout, PortableDropout)):
                    layer.p = self.learn.dropout

    def _evaluator(self) -> Callable[..., Any]:
        return evaluate_by_definition if self._bundle.has("evaluation") else super()._evaluator()
