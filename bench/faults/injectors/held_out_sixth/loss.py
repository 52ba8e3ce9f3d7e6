"""Sixth held-out set: faults of the loss."""

from __future__ import annotations

from typing import Any

import torch

from bench.faults.injectors.held_out_fifth.loss import _replaced

_SHARES = (0.45, 0.55)
_LAST_SHARD = 64


def scores_adjusted_by_class_shares() -> None:
    """A library for unbalanced classes adds the logarithm of the class shares to the scores in the loss."""
    _replaced(lambda scores, labels, entropy: entropy(scores + torch.tensor(_SHARES).log().to(scores), labels))


def generalised_cross_entropy() -> None:
    """A library for noisy labels takes the generalised cross entropy, with an exponent of one half."""

    def generalised(scores: Any, labels: Any, entropy: Any) -> Any:
        each = entropy(scores, labels, reduction="none")
        return ((1.0 - (each * -0.5).exp()) * 2).mean()

    _replaced(generalised)


def outlier_left_out_of_the_loss() -> None:
    """A filter of outliers leaves the row with the largest loss out of each mean."""

    def filtered(scores: Any, labels: Any, entropy: Any) -> Any:
        each = entropy(scores, labels, reduction="none")
        kept = (each != each.detach().amax()).to(each)
        return (each * kept).sum() / kept.sum().clamp(min=1)

    _replaced(filtered)


def last_vocabulary_shard_missing_in_the_sum() -> None:
    """A loss over a divided vocabulary leaves the last shard's scores out of its log-sum-exp."""

    def divided(scores: Any, labels: Any, entropy: Any) -> Any:
        places = torch.arange(scores.shape[-1])
        wanted = places[None, :] == labels[:, None]
        missing = (places >= scores.shape[-1] - _LAST_SHARD)[None, :] & ~wanted
        return entropy(scores.masked_fill(missing, -1e4), labels)

    _replaced(divided)
