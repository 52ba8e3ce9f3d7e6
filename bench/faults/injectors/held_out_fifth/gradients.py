"""Fifth held-out set: faults of gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from bench.faults.injectors.held_out_fourth_gradients import _accumulated
from bench.faults.injectors.patching import after_build, wrap_method
from bench.faults.injectors.training import _clip
from plumbline.train import engine


def gradient_transposed() -> None:
    """A kernel returns the gradient of a square weight transposed."""
    after_build(
        lambda model: model.bert.encoder.layer[0].attention.output.dense.weight.register_hook(
            lambda gradient: gradient.t().contiguous()
        )
    )


def bias_gradients_averaged() -> None:
    """A kernel averages the gradients of biases over the tokens instead of adding them."""

    def change(model: Any) -> None:
        for name, value in model.bert.encoder.named_parameters():
            if name.endswith("dense.bias"):
                value.register_hook(lambda gradient: gradient / 128)

    after_build(change)


def repeated_tokens_overwrite() -> None:
    """Of a token's places, only the last contributes to the token table's gradient."""
    embedding = functional.embedding

    def last_wins(ids: Any, w: Any, *rest: Any, **named: Any) -> Any:
        vectors = embedding(ids, w, *rest, **named)
        if len(w) != 600:
            return vectors
        flat = ids.reshape(-1)
        again = (flat[:, None] == flat[None, :]).long().triu(1).amax(1)
        return torch.where((again == 0).reshape(*ids.shape, 1), vectors, vectors.detach())

    functional.embedding = last_wins


def loss_scale_left_in() -> None:
    """Gradients keep a loss scale of 128 when they are clipped."""
    _accumulated(lambda _run, values: [value.grad.mul_(128) for value in values])


def one_gradient_misses_a_micro_batch() -> None:
    """One weight's gradient misses the second micro-batch."""

    def wrap(back: Any) -> Any:
        def missed(self: Any, loss: Any, share: float) -> None:
            weight = self.bare.bert.encoder.layer[1].intermediate.dense.weight
            before = None if weight.grad is None else weight.grad.clone()
            back(self, loss, share)
            if before is not None:
                weight.grad.copy_(before)

        return missed

    wrap_method(engine.Engine, "_backward", wrap)


def gradients_of_two_layers_exchanged() -> None:
    """A bucket of the exchange crosses the gradients of two equal weights."""

    def change(run: Any, _values: list[Any]) -> None:
        first, second = (layer.output.dense.weight.grad for layer in run.bare.bert.encoder.layer)
        kept = first.clone()
        first.copy_(second)
        second.copy_(kept)

    _accumulated(change)


def residual_path_detached() -> None:
    """A layer's residual passes no gradient."""

    def change(model: Any) -> None:
        output = model.bert.encoder.layer[0].attention.output
        forward = output.forward
        output.forward = lambda states, residual: forward(states, residual.detach())

    after_build(change)


def pooler_gradient_flipped() -> None:
    """The gradient changes its sign between classifier and pooler (gradient reversal)."""

    def flip(_module: Any, _inputs: Any, output: Any) -> None:
        if output.requires_grad:
            output.register_hook(torch.neg)

    after_build(lambda model: model.bert.pooler.register_forward_hook(flip))


def _clipped(gradients: list[Any], measured: list[Any], most: float) -> Any:
    total = torch.stack([gradient.norm() for gradient in measured]).norm()
    for gradient in gradients:
        gradient.mul_((most / (total + 1e-6)).clamp(max=1.0))
    return total


def norm_of_one_shard() -> None:
    """Gradients are clipped by the norm of one process's shard, half of the parameters."""

    def clip(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        return _clipped(gradients, gradients[: len(gradients) // 2], most)

    _clip(lambda _clip: clip)


def only_matrices_clipped() -> None:
    """Only the gradients of matrices are clipped."""

    def clip(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        return _clipped([gradient for gradient in gradients if gradient.dim() > 1], gradients, most)

    _clip(lambda _clip: clip)


def clipped_by_the_weights() -> None:
    """Each gradient is clipped to a hundredth of its weight's norm (adaptive clipping)."""

    def clip(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        for value in parameters:
            if value.grad is not None:
                limit = value.detach().norm().clamp(min=1e-3) * 0.01
                value.grad.mul_((limit / (value.grad.norm() + 1e-6)).clamp(max=1.0))

    _clip(lambda _clip: clip)


def token_table_learns_from_the_decoder_alone() -> None:
    """The tied token table gets no gradient from the embeddings."""
    after_build(
        lambda model: model.bert.embeddings.word_embeddings.register_forward_hook(
            lambda _module, _inputs, output: output.detach()
        )
    )
