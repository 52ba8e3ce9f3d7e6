"""Training tasks: head, labels, loss and predictions; one module per task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.spec import ModelSpec, RunSpec
from plumbline.train.digests import host_array

if TYPE_CHECKING:
    from plumbline.train.rows import Rows

IGNORED = -100
"""Label of a place that the loss does not count."""
_FP32 = 2.0**-21
"""Error of a log-softmax in fp32, in units of its largest operand."""

Labelling = Callable[[dict[str, NDArray[np.int64]], NDArray[np.int64]], None]
"""Changes a batch's `input_ids` and `labels` in place, from the batch and each row's epoch."""


class Answers(NamedTuple):
    """Predictions for a batch of evaluated rows."""

    predictions: NDArray[np.int64]
    """Class of each row; of labelled tokens, the number of correct ones."""
    kept: NDArray[np.float32]
    """Logits of each row; of labelled tokens, the mean log-probability of the true ones."""
    num_correct: int
    right: NDArray[np.uint8] | None = None
    """Whether each row is answered correctly; `None` for several answers a row."""


class Recounted(NamedTuple):
    """Recomputed loss terms, their sum, and number of correct predictions."""

    num_terms: int
    loss: float
    num_correct: int


class Task(ABC):
    """Task definition; this base class uses mean cross entropy over labels.

    Arrays of logits are [rows, classes] with labels [rows], or [rows, length, classes] with labels [rows, length].
    """

    head = ""
    """Head of transformers' classes: `SequenceClassification` as in `BertForSequenceClassification`."""

    @abstractmethod
    def head_products(self, model: ModelSpec) -> tuple[int, int]:
        """Return the multiplications of the head's matmuls, per token and per row."""

    def labelling(self, spec: RunSpec, rows: Rows) -> Labelling | None:  # noqa: ARG002 - for subclasses
        """Return the function that labels tokens; `None` for row labels."""
        return None

    def check(self, model: nn.Module, family: str) -> None:  # noqa: B027 - most tasks fit every model
        """Raise `ConfigurationError` if a model of this family cannot do the task."""

    def aligned(self, logits: Any, labels: Any) -> tuple[Any, Any]:
        """Return logits and labels, aligned for comparison; arrays or tensors."""
        return logits, labels

    def num_terms(self, labels: Any) -> int:
        """Return the number of terms in the mean loss."""
        return int((self.aligned(labels, labels)[1] != IGNORED).sum())

    def term_losses(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of each label, from scores [..., classes] and labels [...], by exp and log.

        The only definition of a task's loss: steps are proven by it, and evaluations recounted.
        """
        peak = scores.detach().amax(-1, keepdim=True)
        whole = peak + (scores - peak).exp().sum(-1, keepdim=True).log()
        return (whole - scores.gather(-1, labels.unsqueeze(-1))).squeeze(-1)

    def loss(self, outputs: Any, labels: torch.Tensor) -> torch.Tensor:  # noqa: ARG002 - for subclasses
        """Return the loss that is trained on: the model's own, unless a task computes another."""
        loss: torch.Tensor = outputs.loss
        return loss

    def defined_loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the differentiable mean loss over the counted labels, without synchronisation."""
        scores, wanted = self.aligned(logits, labels)
        counted = wanted != IGNORED
        losses = self.term_losses(scores, wanted.clamp_min(0))
        mean: torch.Tensor = (losses * counted).sum() / counted.sum().clamp_min(1)
        return mean

    def reference_loss(self, logits: NDArray[np.floating], labels: NDArray[np.int64]) -> float | None:
        """Return the fp64 loss; `None` without labels."""
        if not self.num_terms(labels):
            return None
        return float(self.defined_loss(torch.from_numpy(logits.astype(np.float64)), torch.from_numpy(labels)))

    def answers(self, logits: NDArray[Any], labels: NDArray[np.int64]) -> Answers:
        """Return the predictions for a batch: the most likely classes."""
        answering, wanted = self.aligned(logits, labels)
        best = answering.argmax(axis=-1).astype(np.int64)
        if labels.ndim == 1:
            right = best == wanted
            return Answers(best, logits.astype(np.float32), int(right.sum()), right.astype(np.uint8))
        num_found = ((best == wanted) & (wanted != IGNORED)).sum(axis=1).astype(np.int64)
        rows = range(len(labels))
        losses = [self.reference_loss(logits[row : row + 1], labels[row : row + 1]) for row in rows]
        kept = np.array([[0.0 if loss is None else -loss] for loss in losses], np.float32)
        return Answers(num_found, kept, int(num_found.sum()))

    def recount(self, logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> Recounted:
        """Recompute a forward pass's loss and accuracy in fp64, on-device."""
        answering, expected = self.aligned(logits, labels)
        known = host_array(expected).reshape(-1)
        counted = torch.from_numpy(np.flatnonzero(known != IGNORED))  # on the host: a device's would be waited for
        if not len(counted):
            return Recounted(0, 0.0, 0)
        wanted = torch.from_numpy(known)[counted].to(logits.device)
        scores = answering.reshape(-1, answering.shape[-1])[counted.to(logits.device)].double()
        losses = host_array(self.term_losses(scores, wanted))
        mean = _nearest_loss(losses, float(scores.abs().max()), logits.dtype, float(loss.double()))
        return Recounted(len(wanted), (mean or 0.0) * len(wanted), int((scores.argmax(dim=-1) == wanted).sum()))


def _nearest_loss(losses: NDArray[np.float64], largest: float, dtype: torch.dtype, loss: float) -> float | None:
    """Return the possible loss nearest to `loss`: exact, or rounded in `dtype`.

    `largest` is the largest logit. Under CUDA's autocast torch computes the latter: its cross entropy names a format
    for the log-softmax, which autocast then leaves alone. Log-probabilities within fp32's rounding of a tie may go
    either way.
    """
    exact = float(losses.mean()) if losses.size else None
    if exact is None or dtype in (torch.float32, torch.float64) or not np.isfinite(losses).all():
        return exact
    slack = _FP32 * (1 + largest)
    least, most = (torch.from_numpy(losses + off).to(dtype).double().mean().item() for off in (-slack, slack))
    rounded = min(max(loss, least), most)
    return min(exact, rounded, key=lambda value: abs(value - loss))


def training_task(name: str) -> Task:
    """Return the task called `name`, from module `plumbline.train.tasks.NAME`."""
    module: Any = import_module(f"{__name__}.{name.replace('-', '_')}")
    task: Task = module.TASK
    return task
