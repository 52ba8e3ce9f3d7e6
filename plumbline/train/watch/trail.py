"""Log of the throughput run: batches, losses and weights, read after measuring."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from plumbline.schema.digest import SHORT_DIGITS, digest_array, digest_json
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.production import MAX_LOGGED, Apart, SpeedTrail
from plumbline.schema.sketch import keys, to_mark
from plumbline.train.batches import Batch
from plumbline.train.digests import checksum, finite, host_array, whole_tensor
from plumbline.train.engine import Engine, Observer, StepOutcome, read_losses
from plumbline.train.numerics import digest_states, read_states
from plumbline.train.ranks import Ranks

_OF_DEVICES = ("torch", "cuda:0")
"""Generators that dropout draws from; libraries draw from the others."""


def _first_apart(steps: Sequence[int], values: Sequence[Sequence[object]]) -> tuple[int, int] | None:
    """Return the first (step, rank) with a value different from rank 0's."""
    for place, step in enumerate(steps):
        for rank, mine in enumerate(values):
            if mine[place : place + 1] != values[0][place : place + 1]:
                return step, rank
    return None


def _apart_by(done: int, rates: Sequence[Sequence[float]], norms: Sequence[Sequence[float | None]]) -> Apart:
    """Return what differed between processes first: learning rate, gradient or weights."""
    parts: tuple[tuple[Apart, Sequence[Sequence[object]]], ...] = (("learning rate", rates), ("gradient", norms))
    return next((part for part, values in parts if _first_apart(range(done), values)), "weights")


class TrailObserver(Observer):
    """Observer that stores checksums and losses on the device, without synchronisation.

    Every step adds a few small kernels. Nothing is read before `trail`.
    """

    def __init__(self, ranks: Ranks, num_untimed: int = 0) -> None:
        """Create the log; clipped gradients are measured in the first `num_untimed` steps."""
        self._num_untimed = num_untimed
        self._ranks = ranks
        self._keys: dict[tuple[int, int, int], torch.Tensor] = {}
        self._rows = 0
        self._names: list[str] = []
        self._num_rows: list[int] = []
        self._sums: list[torch.Tensor] = []
        self._fed: torch.Tensor | None = None
        self._losses: list[list[tuple[torch.Tensor, float]]] = []
        self._norms: list[torch.Tensor] = []
        self._clipped: list[torch.Tensor] = []
        self._rates: list[float] = []
        self._steps: list[int] = []
        self._weights: list[torch.Tensor] = []
        self._model: nn.Module | None = None
        self._generators: list[str] = []

    def starts(self, step: int) -> None:  # noqa: ARG002 - an observer's signature
        """Reset the row count for a new step."""
        self._rows, self._fed = 0, None

    def feeds(self, local: Batch, first_row: int) -> None:
        """Add checksums of the micro-batch rows before the forward pass."""
        if len(self._num_rows) >= MAX_LOGGED:
            return
        rows = len(local["labels"])
        self._names = [name for name in BATCH_FIELDS if name in local]
        fields = [local[name].reshape(rows, -1) for name in self._names]
        total = torch.stack([(values * self._key(first_row, rows, values)).sum() for values in fields])
        self._fed = total if self._fed is None else self._fed + total
        self._rows += rows

    def _key(self, first: int, rows: int, values: torch.Tensor) -> torch.Tensor:
        place = (first, rows, values.shape[1])
        if place not in self._keys:
            whole = torch.from_numpy(keys(first + rows, values.shape[1]).copy())
            self._keys[place] = whole[first:].to(values.device)
        return self._keys[place]

    def clipped(self) -> None:
        """Record the clipped gradient norm, and the first step's weights.

        Code that initialises a layer at its first call has changed them since the start.
        """
        if not self._num_rows:
            self._sum_weights()
        if len(self._num_rows) < self._num_untimed and self._model is not None:
            norms = [torch.linalg.vector_norm(each.grad) for each in self._model.parameters() if each.grad is not None]
            self._clipped.append(whole_tensor(torch.linalg.vector_norm(torch.stack(norms or [torch.zeros(())]))))

    def done(self, outcome: StepOutcome) -> None:
        """Record the step's checksums, losses and learning rate."""
        if self._fed is None:
            return
        self._num_rows.append(self._rows)
        self._sums.append(self._fed)
        self._losses.append(outcome.losses)
        if outcome.gradient_norm is not None:
            self._norms.append(whole_tensor(outcome.gradient_norm))
        self._rates.append(outcome.learning_rate)

    def weigh(self, engine: Engine, step: int) -> None:
        """Record checksums of weights and random generators after `step` steps."""
        self._sum_weights()
        self._model = engine.bare
        self._steps.append(step)
        states = {name: state for name, state in read_states().items() if name in _OF_DEVICES}
        self._generators.append(digest_json(digest_states(states)))

    def _sum_weights(self) -> None:
        """Add a checksum of the weights, unless no model is known yet."""
        if self._model is not None:
            parameters = list(self._model.parameters())
            self._weights.append(checksum(parameters, parameters[0].device))

    def trail(self, engine: Engine) -> SpeedTrail:
        """Read the log from the device, and merge all processes'."""
        sums = torch.stack(self._sums).cpu().tolist() if self._sums else []
        read = iter(read_losses(loss for losses in self._losses for loss, _ in losses))
        losses = [sum(next(read) * share for _, share in losses) for losses in self._losses]
        weights = tuple(digest_array(host_array(total))[:SHORT_DIGITS] for total in self._weights)
        norms = tuple(map(finite, read_losses(self._norms))) if len(self._norms) == len(losses) else ()
        clipped = tuple(map(finite, read_losses(self._clipped))) if norms else ()
        mine = (self._num_rows, sums, losses, self._generators, weights, self._rates, norms)
        everyone = self._ranks.gather(mine)
        apart = _first_apart(self._steps, [other[4] for other in everyone])
        part = _apart_by(apart[0], *zip(*(other[5:7] for other in everyone), strict=True)) if apart else "weights"
        steps = zip(*(other[1] for other in everyone), strict=True)
        totals = [[sum(fields) for fields in zip(*step, strict=True)] for step in steps]
        return SpeedTrail(
            num_rows=tuple(map(sum, zip(*(other[0] for other in everyone), strict=True))),
            marks={name: tuple(to_mark(step[place]) for step in totals) for place, name in enumerate(self._names)},
            losses=tuple(finite(float(sum(step))) for step in zip(*(other[2] for other in everyone), strict=True)),
            learning_rates=tuple(self._rates),
            gradient_norms=norms,
            clipped_norms=clipped,
            weights=tuple(zip(self._steps, weights, strict=True)),
            apart=(apart,) if apart else (),
            apart_by=part,
            generators=tuple(
                (step, digest_json([other[3][place] for other in everyone])[:SHORT_DIGITS])
                for place, step in enumerate(self._steps)
            ),
            dropout=tuple(sorted({float(each.p) for each in engine.bare.modules() if isinstance(each, nn.Dropout)})),
        )
