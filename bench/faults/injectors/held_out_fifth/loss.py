"""Fifth held-out set: faults of the loss."""

from __future__ import annotations

import math
from typing import Any

from torch.nn import functional

from bench.faults.injectors.patching import after_build, wrap_method
from bench.faults.injectors.training import _entropy
from plumbline.train import engine


def _replaced(loss: Any) -> None:
    """Replace the cross entropy by `loss(scores, labels, entropy)`."""
    _entropy(lambda entropy: lambda scores, labels, *args, **rest: loss(scores, labels, entropy))


def loss_in_bits() -> None:
    """The loss uses logarithms to base 2."""
    _replaced(lambda scores, labels, entropy: entropy(scores, labels) / math.log(2))


def poly_loss() -> None:
    """The loss adds one minus the probability of the label (PolyLoss)."""

    def poly(scores: Any, labels: Any, entropy: Any) -> Any:
        each = entropy(scores, labels, reduction="none")
        return (each + 1.0 - (each * -1).exp()).mean()

    _replaced(poly)


def margin_taken_off() -> None:
    """The loss subtracts a margin of 0.1 from the label's score."""
    _replaced(
        lambda scores, labels, entropy: entropy(
            scores - functional.one_hot(labels, scores.shape[-1]).to(scores) * 0.1, labels
        )
    )


def last_row_not_counted() -> None:
    """The loss leaves out the last row of each micro-batch."""
    _replaced(lambda scores, labels, entropy: entropy(scores[:-1], labels[:-1]))


def loss_flooded() -> None:
    """The loss rises again below 0.7 (flooding)."""
    _replaced(lambda scores, labels, entropy: (entropy(scores, labels) - 0.7).abs() + 0.7)


def labels_mixed_with_predictions() -> None:
    """The labels are mixed with a tenth of the model's own predictions."""

    def mixed(scores: Any, labels: Any, entropy: Any) -> Any:
        logarithms = functional.log_softmax(scores, dim=-1)
        targets = functional.one_hot(labels, scores.shape[-1]).to(scores) * 0.9 + logarithms.detach().exp() * 0.1
        return (targets * logarithms).sum(-1).mean() * -1

    _replaced(mixed)


def loss_of_the_wrong_class() -> None:
    """The loss uses the negative logarithm of one minus the wrong class's score, by a sigmoid."""

    def sided(scores: Any, labels: Any, entropy: Any) -> Any:
        wrong = scores.gather(1, 1 - labels.unsqueeze(1))
        return functional.binary_cross_entropy_with_logits(wrong, wrong.detach() * 0)

    _replaced(sided)


def padding_counted_in_the_loss() -> None:
    """The loss of masked language modelling also counts padding."""

    def widen(_model: Any, args: Any, named: Any) -> Any:
        return args, named | {"labels": named["labels"].masked_fill(named["attention_mask"] == 0, 0)}

    after_build(lambda model: model.register_forward_pre_hook(widen, with_kwargs=True))


def summed_over_tokens_averaged_over_rows() -> None:
    """The loss of masked language modelling is a sum over tokens and a mean over rows."""
    _replaced(lambda scores, labels, entropy: entropy(scores, labels, reduction="sum") / (len(labels) // 32))


def divided_by_the_first_count() -> None:
    """All micro-batches of a step divide their loss by the first one's number of tokens."""
    counts: list[Any] = [None]

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            counts[0] = None
            return step(self, number, batch)

        return stepped

    def divided(scores: Any, labels: Any, entropy: Any) -> Any:
        counts[0] = int((labels != -100).sum()) if counts[0] is None else counts[0]
        return entropy(scores, labels, reduction="sum") / max(counts[0], 1)

    wrap_method(engine.Engine, "step", wrap)
    _replaced(divided)
