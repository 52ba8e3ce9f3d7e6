"""How far the sequences of a batch cancel in each gradient, and the rounding that a gradient has for that alone.

A gradient is a sum over sequences, whose roundings are independent. Where the sequences cancel, the same roundings are
a larger share of the sum. One rounded run shows a single draw of them: for a gradient with few free entries, such as a
head's bias, that draw is less than a quarter of the next one in one case of six.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping

from torch import nn

from plumbline.schema.spec import RunSpec
from plumbline.train.batches import Batch
from plumbline.train.digests import host_array, norm
from plumbline.train.engine import Observer
from plumbline.train.taps import named_gradients

_MOST_PIECES = 64


def of_single_sequences(spec: RunSpec) -> RunSpec:
    """Return the spec with a micro-batch for each sequence, or for as few as 64 pieces allow."""
    pieces = next(count for count in range(min(spec.batch_size, _MOST_PIECES), 0, -1) if spec.batch_size % count == 0)
    return spec.replace(optimizer=spec.optimizer.replace(accumulation_steps=pieces))


class Contributions(Observer):
    """Observer that sums the squared norms of the micro-batches' gradients, one by one; the update is skipped."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._squares: dict[str, float] = {}

    def _take(self) -> None:
        for name, value in named_gradients(self._model).items():
            self._squares[name] = self._squares.get(name, 0.0) + norm(host_array(value)) ** 2
        for parameter in self._model.parameters():
            parameter.grad = None

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        """Take the gradient of the micro-batch before."""
        self._take()

    def backward_done(self) -> None:
        """Take the last micro-batch's gradient."""
        self._take()

    def update(self) -> bool:
        """Leave the weights as they are."""
        return True

    def norms(self) -> dict[str, float]:
        """Return the root of the summed squares for each gradient."""
        return {name: math.sqrt(square) for name, square in self._squares.items()}


def typical_errors(
    errors: Mapping[str, float | None], apart: Mapping[str, float], norms: Mapping[str, float | None]
) -> dict[str, float]:
    """Return the relative error of each gradient that a typical draw of the roundings gives.

    `errors` are those of one draw, `apart` the norms of the sequences' own gradients, and `norms` those of their sums.
    A draw has one size of rounding in units of the former: the median over the gradients.
    """
    shares = {name: apart[name] / size for name, size in norms.items() if size and name in apart}
    sizes = [error / shares[name] for name, error in _finite(errors.items()) if shares.get(name)]
    typical = statistics.median(sizes) if sizes else 0.0
    return {name: typical * share for name, share in shares.items()}


def _finite(items: Iterable[tuple[str, float | None]]) -> Iterable[tuple[str, float]]:
    return ((name, value) for name, value in items if value is not None and math.isfinite(value))
