"""Fourth held-out set: faults of the loss."""

from __future__ import annotations

from typing import Any

from torch.nn import functional

from bench.faults.injectors.patching import after_build
from bench.faults.injectors.training import _entropy
from plumbline.data.tokenizer import SPECIAL_TOKENS


def softmax_applied_twice() -> None:
    """The loss applies its softmax to probabilities instead of scores."""
    _entropy(lambda entropy: lambda scores, labels, *args, **rest: entropy(functional.softmax(scores, dim=-1), labels))


def squared_error() -> None:
    """The loss is the squared error of the scores, as for a regression."""

    def squared(scores: Any, labels: Any, *_args: Any, **_rest: Any) -> Any:
        difference = scores - functional.one_hot(labels, scores.shape[-1]).to(scores)
        return (difference * difference).mean()

    _entropy(lambda _entropy: squared)


def hinge_loss() -> None:
    """The loss is the margin between the two scores."""

    def hinge(scores: Any, labels: Any, *_args: Any, **_rest: Any) -> Any:
        right = scores.gather(1, labels.unsqueeze(1))
        wrong = scores.gather(1, 1 - labels.unsqueeze(1))
        return (1 + wrong - right).clamp(min=0).mean()

    _entropy(lambda _entropy: hinge)


def first_class_taken_for_padding() -> None:
    """The loss ignores label 0, as if 0 were padding."""

    def ignoring(scores: Any, labels: Any, entropy: Any) -> Any:
        return entropy(scores, labels, reduction="sum", ignore_index=0) / (labels != 0).sum().clamp(min=1)

    _entropy(lambda entropy: lambda scores, labels, *args, **rest: ignoring(scores, labels, entropy))


def hardest_rows_alone() -> None:
    """The loss is the mean of the two hardest rows of a micro-batch."""
    _entropy(
        lambda entropy: (
            lambda scores, labels, *args, **rest: entropy(scores, labels, reduction="none").topk(2).values.mean()
        )
    )


def weights_penalised() -> None:
    """The loss includes a penalty on the classifier's weights."""

    def penalise(model: Any, _inputs: Any, output: Any) -> Any:
        weight = model.classifier.weight
        output["loss"] = output["loss"] + 0.1 * (weight * weight).sum()
        return output

    after_build(lambda model: model.register_forward_hook(penalise))


def masked_tokens_alone() -> None:
    """The loss leaves out hidden tokens that are not replaced by [MASK]."""
    mask = SPECIAL_TOKENS.index("[MASK]")

    def narrow(_model: Any, args: Any, named: Any) -> Any:
        labels = named["labels"].masked_fill(named["input_ids"] != mask, -100)
        return args, named | {"labels": labels}

    after_build(lambda model: model.register_forward_pre_hook(narrow, with_kwargs=True))


def last_chunk_lost() -> None:
    """A chunked loss drops the places after the last whole chunk (pytorch/torchtitan#2937)."""

    def chunked(scores: Any, labels: Any, entropy: Any) -> Any:
        whole = len(labels) // 50 * 50
        return entropy(scores[:whole], labels[:whole])

    _entropy(lambda entropy: lambda scores, labels, *args, **rest: chunked(scores, labels, entropy))
