"""Fifth held-out set: faults of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_fourth_operators import _inputs
from bench.faults.injectors.held_out_model import _attention
from bench.faults.injectors.patching import step_counter, wrap_method


def _scored(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the scaled scores before the mask is added."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = change(torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling))
        weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights

    modeling_bert.eager_attention_forward = attend


def scores_capped() -> None:
    """Scores pass a soft cap of one half, as in Gemma 2."""
    _scored(lambda scores: torch.tanh(scores * 2) * 0.5)


def distance_penalised() -> None:
    """Scores fall with the distance between tokens (ALiBi)."""

    def change(scores: torch.Tensor) -> torch.Tensor:
        places = torch.arange(scores.shape[-1])
        return scores - (places[:, None] - places[None, :]).abs().to(scores) * 0.0625

    _scored(change)


def rotary_positions_added() -> None:
    """Queries and keys are also rotated by their positions."""

    def rotate(value: Any) -> Any:
        half = value.shape[-1] // 2
        rates = torch.tensor([10000.0 ** (-place / half) for place in range(half)], dtype=value.dtype)
        angles = torch.arange(value.shape[2]).to(value)[:, None] * rates[None, :]
        low, high = value[..., :half], value[..., half:]
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([low * cosine - high * sine, low * sine + high * cosine], -1)

    _inputs(lambda q, k, v, mask: (rotate(q), rotate(k), v, mask))


def queries_and_keys_normalised() -> None:
    """Queries and keys are divided by their root mean square."""

    def normal(value: Any) -> Any:
        return value * torch.rsqrt((value * value).mean(-1, keepdim=True) + 1e-6)

    _inputs(lambda q, k, v, mask: (normal(q), normal(k), v, mask))


def _joined(change: Callable[[Any], Any]) -> None:
    """Change attention's output, with the axes row, token, head and feature."""

    def wrap(forward: Any) -> Any:
        def attend(*args: Any, **rest: Any) -> Any:
            output, weights = forward(*args, **rest)
            return change(output), weights

        return attend

    wrap_method(modeling_bert, "eager_attention_forward", wrap)


def heads_in_reverse() -> None:
    """The heads are joined in reverse order."""
    _joined(lambda output: output.flip(2))


def a_head_lost_at_step_five() -> None:
    """At the sixth step alone the second head returns zeros."""
    step = step_counter()
    _joined(lambda output: output * torch.tensor([1.0, 0.0]).to(output)[None, None, :, None] if step() == 5 else output)


def mask_of_the_first_row() -> None:
    """All rows of a batch use the mask of the first row."""
    _attention(lambda mask, q: None if mask is None else mask[:1].expand_as(mask))


def mask_of_the_first_call() -> None:
    """A cache keeps the mask of the first batch."""
    kept: dict[Any, Any] = {}

    def change(mask: Any, q: Any) -> Any:
        return None if mask is None else kept.setdefault((mask.shape, mask.dtype), mask)

    _attention(change)


def _hidden(mask: Any, q: Any, hidden: torch.Tensor) -> Any:
    lowest = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, torch.finfo(q.dtype).min)
    return lowest if mask is None else torch.minimum(mask, lowest)


def tokens_blind_to_themselves() -> None:
    """No token attends to itself."""
    _attention(lambda mask, q: _hidden(mask, q, torch.eye(q.shape[2]).bool()))


def every_eighth_key_lost() -> None:
    """A tiled kernel leaves out the last key of each tile of eight."""

    def change(mask: Any, q: Any) -> Any:
        lost = torch.arange(q.shape[2]) % 8 == 7
        return _hidden(mask, q, lost.expand(q.shape[2], q.shape[2]))

    _attention(change)


def padding_weighs_in_the_denominator() -> None:
    """Attention's weights are set to zero at padding after the softmax, not before."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        weights = functional.softmax(scores, dim=-1)
        if mask is not None:
            weights = weights * (mask == 0).to(weights)
        return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights

    modeling_bert.eager_attention_forward = attend
