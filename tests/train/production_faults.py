"""Faults of production kernels: each is right in the strict probe, and wrong at the settings of `speed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from plumbline.train import engine
from plumbline.train.batches import Batch

Plant = Callable[[pytest.MonkeyPatch], None]


def _short(tensor: torch.Tensor) -> bool:
    """Return whether the call is a production one: by autocast, or on short numbers."""
    return torch.is_autocast_enabled("cpu") or tensor.dtype in (torch.bfloat16, torch.float16)


def _sdpa(change: Callable[[Any, dict[str, Any]], torch.Tensor]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        plain = functional.scaled_dot_product_attention

        def faulty(query: Any, key: Any, value: Any, attn_mask: Any = None, **named: Any) -> torch.Tensor:
            return change(plain, {"query": query, "key": key, "value": value, "attn_mask": attn_mask, **named})

        patch.setattr(functional, "scaled_dot_product_attention", faulty)

    return plant


def _no_mask(plain: Any, given: dict[str, Any]) -> torch.Tensor:
    return plain(**given | {"attn_mask": None})


class _HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 0.5


def _wrong_backward(plain: Any, given: dict[str, Any]) -> torch.Tensor:
    return plain(**given | {"query": _HalfGradient.apply(given["query"]), "key": _HalfGradient.apply(given["key"])})


def _fused(**changes: Callable[[Any], Any]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        plain = torch._fused_adamw_

        def faulty(*tensors: Any, **named: Any) -> None:
            plain(*tensors, **named | {name: change(named[name]) for name, change in changes.items()})

        patch.setattr(torch, "_fused_adamw_", faulty)

    return plant


def _late_steps(patch: pytest.MonkeyPatch) -> None:
    """The bias correction is that of step 1000."""
    plain = torch._fused_adamw_

    def faulty(*tensors: Any, **named: Any) -> None:
        *others, steps = tensors
        plain(*others, [step + 1000 for step in steps], **named)

    patch.setattr(torch, "_fused_adamw_", faulty)


def _function(name: str, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Plant:
    """Change what a function of `torch.nn.functional` returns, from its result and its input, in production only."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        plain = getattr(functional, name)

        def faulty(value: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
            result = plain(value, *given, **named)
            return change(result, value) if _short(value) else result

        patch.setattr(functional, name, faulty)

    return plant


def _every_second_row(patch: pytest.MonkeyPatch) -> None:
    plain = engine.Engine._micro_batches

    def faulty(self: engine.Engine, batch: Batch) -> Any:
        for piece, share in plain(self, batch):
            yield ({name: values[::2] for name, values in piece.items()} if self.part == "speed" else piece), share

    patch.setattr(engine.Engine, "_micro_batches", faulty)


def _unclipped(patch: pytest.MonkeyPatch) -> None:
    plain = torch.nn.utils.clip_grad_norm_
    patch.setattr(torch.nn.utils, "clip_grad_norm_", lambda parameters, norm: plain(parameters, norm * 4))


def _fewer_bits(result: torch.Tensor, _value: torch.Tensor) -> torch.Tensor:
    """Round to three bits of mantissa, as fp8 does."""
    mantissa, exponent = torch.frexp(result.float())
    return torch.ldexp(torch.round(mantissa * 16) / 16, exponent).to(result.dtype)


def _lost_columns(result: torch.Tensor, _value: torch.Tensor) -> torch.Tensor:
    return torch.cat([result[..., :-8], torch.zeros_like(result[..., -8:])], dim=-1) if result.shape[-1] > 8 else result


FAULTS: dict[str, tuple[Plant, str, str]] = {
    "sdpa-ignores-padding": (_sdpa(_no_mask), "operator", "attention"),
    "sdpa-backward-halved": (_sdpa(_wrong_backward), "gradient", "attention"),
    "fused-without-decay": (_fused(weight_decay=lambda _: 0.0), "optimizer", ""),
    "fused-other-beta2": (_fused(beta2=lambda value: 1 - (1 - value) * 2), "optimizer", ""),
    "fused-rate-3%-too-large": (_fused(lr=lambda value: value * 1.03), "optimizer", ""),
    "fused-bias-correction-of-step-1000": (_late_steps, "optimizer", ""),
    "relu-for-gelu": (_function("gelu", lambda _, value: torch.relu(value)), "operator", "intermediate_act_fn"),
    "norm-loses-columns": (_function("layer_norm", _lost_columns), "operator", "LayerNorm"),
    "linear-in-three-bits": (_function("linear", _fewer_bits), "operator", "query"),
    "every-second-row-skipped": (_every_second_row, "data.order", "row_ids"),
    "clipped-at-four-times-the-norm": (_unclipped, "gradient", "clipping"),
    "loss-smoothed": (
        _function("cross_entropy", lambda result, value: result + 0.05 * value.float().square().mean()), "loss", "",
    ),
}  # fmt: skip
"""Fault → (plant, code of its cause, part of the place that is named)."""
