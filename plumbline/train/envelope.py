"""Envelope: the measured effect of rounding alone."""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
import torch

from plumbline.data.staging.order import random_keys
from plumbline.schema.evidence import EnvelopeSample, StepEvidence
from plumbline.schema.sketch import relative_error
from plumbline.schema.spec import Precision, ProbeSpec
from plumbline.train.batches import of_one_process, of_probe
from plumbline.train.context import Context
from plumbline.train.engine import Engine, StepOutcome
from plumbline.train.model import build_model, fit_activations, load_weights
from plumbline.train.numerics import seed_generators
from plumbline.train.portable.leg import PortableLeg
from plumbline.train.ranks import Ranks
from plumbline.train.taps import TapBook, TapObserver, named_gradients

_NOISE = 0.5
"""Relative error against the leg above which a tensor is pure rounding; no number format puts a real tensor there."""


def perturbed(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Return all weights moved to a random neighbouring number; zeros stay."""
    moved = {}
    for name, value in weights.items():
        up = torch.from_numpy((random_keys(value.numel(), "ulp", seed, name) >> np.uint64(63)).astype(bool))
        infinity = torch.tensor(float("inf"), dtype=value.dtype)
        target = torch.where(up.reshape(value.shape), infinity, -infinity)
        moved[name] = torch.where(value == 0, value, torch.nextafter(value.cpu(), target))
    return moved


class _Observer(TapObserver):
    """Observer that taps some steps and keeps every loss, without digests."""

    def __init__(self, engine: Engine, book: TapBook, steps: list[int]) -> None:
        super().__init__(engine, book, steps)
        self.losses: list[float] = []

    def backward_done(self) -> None:
        if self.summarised() is not None:
            model = self.engine.bare
            self.book.add_parameters(self.step, "gradient", model, named_gradients(model))

    def done(self, outcome: StepOutcome) -> None:
        if self.step in self._tap_steps:
            model = self.engine.bare
            self.book.add_parameters(self.step, "weight", model, dict(model.named_parameters()))
        self.losses.append(outcome.loss(self.engine.ranks))


def _rerun(
    context: Context, probe: ProbeSpec, weights: dict[str, torch.Tensor], *, precision: Precision, steps: int,
    taps: list[int],
) -> tuple[TapBook, list[float]]:  # fmt: skip
    """Repeat the probe's first steps, with different weights or precision.

    One process takes all processes' micro-batches one after the other: it needs no more memory than in the training,
    and no answer from a process that may have lost its leg.
    """
    # Device memory is scarce; in main memory a collection costs more than it frees.
    if context.ranks.device.type == "cuda":
        context.release()
    model = build_model(context.spec, attention=probe.attention, dropout=0.0, device=context.ranks.device)
    load_weights(model, weights)
    model.train()
    spec, alone = of_probe(context.spec, context.ranks.world), Ranks(device=context.ranks.device)
    fit_activations(model, spec, context.ranks, torch.float32)
    book = TapBook(digests="none")
    spec = of_one_process(spec, context.ranks.world)
    engine = Engine(spec, model, alone, steps=probe.steps, precision=precision, part="probe")
    observer = engine.observer = _Observer(engine, book, taps)
    seed_generators(context.spec.seed)
    for step, batch in enumerate(context.batches(first=0, count=steps, cycle=probe.steps)):
        engine.step(step, batch)
    del observer.engine  # breaks the cycle of both, which would keep the model alive
    return book, observer.losses


def _errors(book: TapBook, other: TapBook) -> list[float | None]:
    """Return the error of each tap against `other`; `None` if the tap is missing."""
    places = {(tap.step, tap.stage, tap.name): place for place, tap in enumerate(other.taps)}
    errors: list[float | None] = []
    for tap, mine in zip(book.taps, book.sketches, strict=True):
        place = places.get((tap.step, tap.stage, tap.name))
        errors.append(None if place is None else relative_error(mine, other.sketches[place], tap.norm))
    return errors


def _relative(losses: list[float], others: list[float]) -> list[float]:
    return [abs(other - loss) / abs(loss) if loss else abs(other) for loss, other in zip(losses, others, strict=False)]


def _worst(rows: list[list[float | None]]) -> tuple[float | None, ...]:
    columns = zip(*rows, strict=True)
    return tuple(max((error for error in column if error is not None), default=None) for column in columns)


def _up_to(steps: int, book: TapBook, errors: list[float | None]) -> list[float | None]:
    """Return the errors of the taps before step `steps`; `None` for the others."""
    return [error if tap.step < steps else None for tap, error in zip(book.taps, errors, strict=True)]


def _with_noise(book: TapBook, errors: tuple[float | None, ...], leg: list[float | None]) -> tuple[float | None, ...]:
    """Set the error of rounding-only tensors to 1 at every step.

    The gradient of attention's key biases is zero by mathematics: its computed value is pure rounding, as far from the
    portable leg as from any other run, and a few perturbations may be close together by chance.
    """
    noise = {
        (tap.stage, tap.name)
        for tap, error in zip(book.taps, leg, strict=True)
        if error is not None and error >= _NOISE
    }
    return tuple(
        max(error or 0.0, 1.0) if (tap.stage, tap.name) in noise else error
        for tap, error in zip(book.taps, errors, strict=True)
    )


def measure_envelope(
    context: Context, probe: ProbeSpec, book: TapBook, evidence: list[StepEvidence], leg: PortableLeg
) -> EnvelopeSample:
    """Perturb weights by one unit in the last place, and compare with the portable leg.

    Every seed repeats the steps up to the first tapped step; the first seed continues to the end.
    """
    losses = [step.loss for step in evidence if step.loss is not None]
    tapped = sorted({tap.step for tap in book.taps})
    errors: list[list[float | None]] = []
    loss_errors: list[list[float]] = []
    for seed in range(probe.envelope_seeds):
        steps, taps = (len(evidence), tapped) if seed == 0 else (tapped[0] + 1, tapped[:1])
        other, others = _rerun(
            context, probe, perturbed(context.weights, seed), precision=probe.precision, steps=steps, taps=taps
        )
        errors.append(_errors(book, other))
        loss_errors.append(_relative(losses, others))
    against_leg = _errors(book, leg.book)
    return EnvelopeSample(
        seeds=probe.envelope_seeds,
        errors=_with_noise(book, _worst(errors), _up_to(leg.comparable_steps, book, against_leg)),
        loss=tuple(max(column) for column in zip_longest(*loss_errors, fillvalue=0.0)),
    )
