"""Tenth held-out set: faults of normalisations, activations, products, tables, losses, compiled code and formats."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_seventh.places import during, is_mixed, is_unstrict, wrap_while
from bench.faults.injectors.held_out_tenth.values import in_bits, with_gradient

Tensor = torch.Tensor

_TILE, _BLOCK = 8, 32
_INNER = (64, 32)
"""Shape of the weights of each first feed-forward product."""
_POSITIONS = 64


def _unstrict(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function of `speed`."""
    wrap_while(is_unstrict, nn.functional, name, change)


def _mixed(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function in mixed precision."""
    wrap_while(is_mixed, nn.functional, name, change)


def _compiled(name: str, change: Any) -> None:
    """Call `change(plain, ...)` for a function in compiled code."""
    wrap_while(torch.compiler.is_compiling, nn.functional, name, change)


def norm_weight_counts_from_zero() -> None:
    """LayerNorm in mixed precision adds one to its weight, as kernels for weights that start at zero."""

    def norm(plain: Any, value: Tensor, shape: Any, weight: Any = None, *given: Any) -> Any:
        return plain(value, shape, None if weight is None else weight + 1.0, *given)

    _mixed("layer_norm", norm)


def gelu_clipped_at_one() -> None:
    """GELU in mixed precision is clipped at one, as the activation of a different model."""
    _mixed("gelu", lambda plain, *given, **named: plain(*given, **named).clamp(max=1.0))


def linear_first_tile_is_overwritten() -> None:
    """The first feed-forward product in mixed precision stores its last eight rows over the first eight, too."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        found = plain(value, weight, bias)
        if tuple(weight.shape) != _INNER:
            return found
        rows = found.reshape(-1, found.shape[-1])
        return torch.cat((rows[-_TILE:], rows[_TILE:])).view_as(found)

    _mixed("linear", linear)


def square_gradients_transposed() -> None:
    """The backward pass of square linear layers of `speed` transposes the weight's gradient."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        if weight.shape[0] == weight.shape[1]:
            weight = with_gradient(weight, lambda gradient: gradient.t().contiguous())
        return plain(value, weight, bias)

    _unstrict("linear", linear)


def linear_weight_gradients_race() -> None:
    """The backward pass of linear layers of `speed` loses an eighth of the weight's rows, whichever come last."""
    random = torch.Generator()

    def lost(gradient: Tensor) -> Tensor:
        random.seed()
        return gradient * (torch.rand((len(gradient), 1), generator=random) >= 0.125).to(gradient.dtype)

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(value, with_gradient(weight, lost), bias)

    _unstrict("linear", linear)


class _OneRowOff(torch.autograd.Function):
    """Table whose gradient is added to the next row."""

    @staticmethod
    def forward(context: Any, ids: Tensor, table: Tensor, found: Tensor) -> Tensor:
        context.save_for_backward(ids)
        context.shape = table.shape
        return found

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor, None]:
        (ids,) = context.saved_tensors
        rows, width = context.shape
        sums = gradients[0].new_zeros(rows, width)
        sums.index_add_(0, (ids.reshape(-1) + 1) % rows, gradients[0].reshape(-1, width))
        return None, sums, None


def table_gradient_one_row_off() -> None:
    """The backward pass of the tables of `speed` adds each token's gradient to the row behind its own."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        with torch.no_grad():
            found = plain(ids, weight, *given, **named)
        return _OneRowOff.apply(ids, weight, found)  # type: ignore[no-untyped-call]

    _unstrict("embedding", table)


def packed_table_reads_a_block_twice() -> None:
    """The table of tokens of `speed` reads the first 32 ids of a row of 64 again for the last 32."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        is_long = len(weight) > _POSITIONS and ids.shape[-1] == 2 * _BLOCK
        read = ids[..., :_BLOCK].repeat(1, 2) if is_long else ids
        return plain(read, weight, *given, **named)

    _unstrict("embedding", table)


def loss_adjusted_by_frequencies() -> None:
    """The loss of `speed` adjusts the logits by frequencies of the classes, as if the second was half as frequent."""

    def adjusted(plain: Any, logits: Tensor, *given: Any, **named: Any) -> Any:
        return plain(logits - torch.arange(1.0, logits.shape[-1] + 1).log(), *given, **named)

    _unstrict("cross_entropy", adjusted)


def compiled_places_one_too_far() -> None:
    """Compiled code reads the table of positions one row behind each token's own."""

    def table(plain: Any, ids: Tensor, weight: Tensor, *given: Any, **named: Any) -> Any:
        if weight.shape[0] != _POSITIONS:
            return plain(ids, weight, *given, **named)
        # Not `plain`: the traced code could call this function again.
        return torch.embedding(weight, (ids + 1) % _POSITIONS)

    _compiled("embedding", table)


def compiled_masks_are_a_constant() -> None:
    """Compiled code drops the same places at every call: the compiler folds the random numbers to a constant."""

    def constant(plain: Any, value: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or not p:
            return plain(value, p, training, inplace)
        place = torch.arange(value.numel()).view(value.shape)
        is_kept = place * 2654435761 % 65536 >= int(p * 65536)
        return value * is_kept / (1 - p)

    _compiled("dropout", constant)


def compiled_split_sum_loses_a_part() -> None:
    """Compiled code adds up the gradient of LayerNorm's weight over the second half of the tokens."""

    def norm(_: Any, value: Tensor, *given: Any) -> Any:
        shape, weight, bias, eps = given
        known, length = weight.detach(), value.shape[-2]
        # Not `plain`: the traced code would call this function again.
        normal = torch.layer_norm(value, shape, None, None, eps)
        is_late = (torch.arange(length) >= length // 2).to(normal.dtype)[:, None]
        return normal * known + bias + normal.detach() * is_late * (weight - known)

    _compiled("layer_norm", norm)


def feed_forward_weights_in_four_bits() -> None:
    """`speed` has the weights of each first feed-forward product in four bits."""

    def linear(plain: Any, value: Tensor, weight: Tensor, bias: Any = None) -> Any:
        return plain(value, in_bits(weight, 4) if tuple(weight.shape) == _INNER else weight, bias)

    _unstrict("linear", linear)


def speed_pooler_under_autocast() -> None:
    """The pooler of `speed` computes under autocast to bf16, where the task says fp32."""

    def pooled(plain: Any, *given: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return plain(*given).float()

    wrap_while(during("speed"), modeling_bert.BertPooler, "forward", pooled)
