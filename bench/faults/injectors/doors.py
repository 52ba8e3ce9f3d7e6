"""Faults that once passed: late ones of `speed`, native kernels, lost checks, and evidence that is wrong by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _get_current_dispatch_mode

from bench.faults.catalogue import OTHER_ISA, Entry
from bench.faults.injectors.patching import after_build, during, wrap_method
from plumbline.train import engine, experiment, learn, probe, speed
from plumbline.train.own_checks import OwnChecks
from plumbline.train.portable.fp64 import Fp64Operations
from plumbline.train.windows import WindowRunner


def _from_build(keys: dict[str, float], *, part: Any) -> None:
    """Build the model of a part with other settings."""
    wrap_method(part, "build_model", lambda plain: lambda *given, **named: plain(*given, **named | keys))


# `speed` behind its first steps.


def gradients_kept_every_second_step() -> None:
    """`speed` does not clear the gradients at every second step."""
    now = during("speed", first=1)
    odd = [False]

    def wrap(plain: Any) -> Any:
        def cleared(self: Any, **named: Any) -> None:
            odd[0] = not odd[0]
            if not (now() and odd[0]):
                plain(self, **named)

        return cleared

    wrap_method(torch.optim.Optimizer, "zero_grad", wrap)


def first_rate_kept() -> None:
    """`speed` records its learning rates, and its updates keep the first."""
    now = during("speed")
    first: dict[int, float] = {}

    def wrap(plain: Any) -> Any:
        def stepped(self: Any, *given: Any, **named: Any) -> Any:
            if not now():
                return plain(self, *given, **named)
            rates = [group["lr"] for group in self.param_groups]
            for group in self.param_groups:
                group["lr"] = first.setdefault(id(group), group["lr"])
            try:
                return plain(self, *given, **named)
            finally:
                for group, rate in zip(self.param_groups, rates, strict=True):
                    group["lr"] = rate

        return stepped

    wrap_method(torch.optim.AdamW, "step", wrap)


def attention_keeps_all() -> None:
    """Attention of `speed` drops nothing, by the operations that it has with dropout.

    Fused attention without dropout fails in bfloat16 where AVX2 is asked of a CPU with AMX ("pack_vnni2").
    """
    now = during("speed")

    def wrap(plain: Any) -> Any:
        def attended(*given: Any, **named: Any) -> Any:
            if not now():
                return plain(*given, **named)
            with sdpa_kernel(SDPBackend.MATH):
                return plain(*given, **named | {"dropout_p": 0.0})

        return attended

    wrap_method(nn.functional, "scaled_dot_product_attention", wrap)


def stale_autocast_weights() -> None:
    """`speed` multiplies by the weights of every second step, as a cache of autocast that is not cleared."""
    now = during("speed")
    kept: dict[int, Any] = {}
    calls: dict[int, int] = {}

    def wrap(plain: Any) -> Any:
        def stale(value: Any, weight: Any, bias: Any = None) -> Any:
            if not now() or not torch.is_autocast_enabled("cpu") or not torch.is_grad_enabled():
                return plain(value, weight, bias)
            key = id(weight)
            calls[key] = calls.get(key, -1) + 1
            if calls[key] % 4 == 0 or kept[key].shape != weight.shape:
                kept[key] = weight.detach().clone()
            return plain(value, weight + (kept[key] - weight).detach(), bias)

        return stale

    wrap_method(nn.functional, "linear", wrap)


def late_updates_lost() -> None:
    """`speed` makes no update from its sixth step on."""
    _without_updates(during("speed", first=6))


def third_update_lost() -> None:
    """`speed` makes no update at its third step."""
    now, behind = during("speed", first=2), during("speed", first=3)
    _without_updates(lambda: now() and not behind())


def probe_update_lost() -> None:
    """The probe makes no update at its third step."""
    now, behind = during("probe", first=2), during("probe", first=3)
    _without_updates(lambda: now() and not behind())


def _without_updates(now: Callable[[], bool]) -> None:
    def wrap(plain: Any) -> Any:
        return lambda self, *given, **named: None if now() else plain(self, *given, **named)

    wrap_method(torch.optim.AdamW, "step", wrap)


def updates_too_long() -> None:
    """The updates of `speed` are 3% too long from its third step on."""
    _longer_updates(during("speed", first=2), 1.03)


# Native kernels: right in fp64.


def _is_native(value: torch.Tensor) -> bool:
    return value.dtype == torch.float32 and not isinstance(_get_current_dispatch_mode(), Fp64Operations)


def _kernel(name: str, wrong: Callable[..., torch.Tensor]) -> None:
    """Let `wrong(plain, ...)` stand for a function of `torch.nn.functional` in native fp32."""
    wrap_method(
        nn.functional, name,
        lambda plain: lambda value, *given, **named: (
            wrong(plain, value, *given, **named) if _is_native(value) else plain(value, *given, **named)
        ),
    )  # fmt: skip


def linear_drops_terms() -> None:
    """The native product of a linear layer leaves out its last two terms."""

    def wrong(plain: Any, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        found: torch.Tensor = plain(value[..., :-2], weight[:, :-2], bias)
        return found

    _kernel("linear", wrong)


def layer_norm_skips_its_tail() -> None:
    """The native LayerNorm does not scale its last three features."""

    def wrong(plain: Any, value: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        output = plain(value, *given, **named)
        return torch.cat([output[..., :-3], value[..., -3:]], dim=-1)

    _kernel("layer_norm", wrong)


def gelu_with_a_wrong_branch() -> None:
    """The native GELU is the identity above a twentieth."""
    _kernel(
        "gelu", lambda plain, value, *given, **named: torch.where(value > 0.05, value, plain(value, *given, **named))
    )


def softmax_skips_its_tail() -> None:
    """The native softmax gives the last three of many keys no weight."""

    def wrong(plain: Any, value: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        output: torch.Tensor = plain(value, *given, **named)
        tail = torch.zeros_like(output[..., -3:])
        return torch.cat([output[..., :-3], tail], dim=-1) if output.shape[-1] > 8 else output

    _kernel("softmax", wrong)


class _Backward(torch.autograd.Function):
    """A linear layer whose backward pass leaves the last two columns of the weight out of the input's gradient."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(weight)
        return value.view_as(value)

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.cat([gradients[0][..., :-2], torch.zeros_like(gradients[0][..., -2:])], dim=-1), None


def linear_loses_gradients() -> None:
    """The native backward pass of a linear layer leaves out the last two features of its input's gradient."""

    def wrong(plain: Any, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        found: torch.Tensor = plain(_Backward.apply(value, weight), weight, bias)
        return found

    _kernel("linear", wrong)


def entropy_counts_a_row_less() -> None:
    """The native cross entropy leaves its last row out of the sum."""

    def wrong(plain: Any, scores: torch.Tensor, labels: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        found: torch.Tensor = plain(scores[:-1], labels[:-1], *given, **named) * (len(labels) - 1) / len(labels)
        return found

    _kernel("cross_entropy", wrong)


def native_updates_too_long() -> None:
    """The native update is 3% too long."""
    _longer_updates(lambda: not isinstance(_get_current_dispatch_mode(), Fp64Operations), 1.03)


def _longer_updates(now: Callable[[], bool], factor: float) -> None:
    def wrap(plain: Any) -> Any:
        def stepped(self: Any, *given: Any, **named: Any) -> Any:
            values = [value for group in self.param_groups for value in group["params"]]
            if not now() or values[0].dtype == torch.float64:
                return plain(self, *given, **named)
            before = [value.detach().clone() for value in values]
            found = plain(self, *given, **named)
            with torch.no_grad():
                for value, old in zip(values, before, strict=True):
                    value.copy_(old + (value - old) * factor)
            return found

        return stepped

    wrap_method(torch.optim.AdamW, "step", wrap)


def one_layer_norm_with_other_eps() -> None:
    """One LayerNorm has a slightly larger eps."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[0].attention.output.LayerNorm.eps = 9e-6

    after_build(change)


def checks_out_of_memory() -> None:
    """The memory of the device is short in the windows and checks of `speed`."""

    def wrap(plain: Any) -> Any:
        def lost(self: Any, *given: Any) -> Any:
            if isinstance(self, OwnChecks) or self._setting.part == "speed":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return plain(self, *given)

        return lost

    for owner in (OwnChecks, WindowRunner):
        wrap_method(owner, "_run", wrap)


def speed_with_silu() -> None:
    """`speed` computes a SiLU instead of a GELU. A ReLU's slope jumps, which a proof in fp64 may show by luck."""
    now, silu = during("speed"), nn.functional.silu
    wrap_method(
        nn.functional, "gelu",
        lambda plain: lambda value, *given, **named: silu(value) if now() else plain(value, *given, **named),
    )  # fmt: skip


# Evidence that is wrong by itself.


def evaluated_with_dropout() -> None:
    """Every evaluation leaves the model in training mode."""
    _evaluated_in_training_mode(learn)


def probe_evaluated_with_dropout() -> None:
    """The probe's evaluation leaves the model in training mode."""
    for part in (probe, experiment):
        _evaluated_in_training_mode(part)


def _evaluated_in_training_mode(part: Any) -> None:
    def wrap(plain: Any) -> Any:
        def evaluated(model: nn.Module, *given: Any, **named: Any) -> Any:
            model.eval, before = (lambda: model), model.training  # type: ignore[method-assign,assignment]
            model.train()
            try:
                return plain(model, *given, **named)
            finally:
                del model.eval
                model.train(before)

        return evaluated

    wrap_method(part, "evaluate", wrap)


def speed_drops_more() -> None:
    """`speed` drops a fifth of the elements instead of the spec's tenth."""
    from plumbline.train import speed_engine

    plain = speed_engine.make_engine

    def made(context: Any, spec: Any, chosen: Any, *, dropout: float, **named: Any) -> Any:
        return plain(context, spec, chosen, dropout=2 * dropout, **named)

    speed.make_engine = made


def learn_drops_more() -> None:
    """`learn` drops a fifth of the elements instead of the spec's tenth."""
    _from_build({"dropout": 0.2}, part=learn)


def long_rows_lose_tokens() -> None:
    """The model does not see the last sixteen tokens of rows beyond 48, at every step of `learn`."""
    now = during("learn")

    def wrap(plain: Any) -> Any:
        def inputs(self: Any, piece: Any) -> Any:
            given = plain(self, piece)
            mask = given.get("attention_mask")
            if not now() or mask is None or mask.dim() != 2:
                return given
            lengths = mask.sum(dim=1, keepdim=True)
            places = torch.arange(mask.shape[1]).expand_as(mask)
            hidden = (lengths > 48) & (places >= lengths - 16)
            return {**given, "attention_mask": mask.masked_fill(hidden, 0)}

        return inputs

    wrap_method(engine.Engine, "_inputs", wrap)


def _entries(faults: dict[str, str]) -> tuple[Entry, ...]:
    return tuple(
        Entry(name.replace("_", "-"), "doors", cause, inject=f"doors.{name}", workload="doors")
        for name, cause in faults.items()
    )


LATE = _entries({
    "gradients_kept_every_second_step": "gradient", "first_rate_kept": "optimizer", "attention_keeps_all": "rng",
    "stale_autocast_weights": "operator", "updates_too_long": "optimizer",
})  # fmt: skip
"""Faults of `speed` behind its first steps: bits show them on an equal machine, and nothing behind a different one."""
BEHIND = tuple(replace(entry, name=f"{entry.name}-behind-other-isa", environment=OTHER_ISA) for entry in LATE)
"""The same on a machine that rounds differently: they pass, until each machine proves its own steps."""
KERNELS = _entries({
    "linear_drops_terms": "operator", "layer_norm_skips_its_tail": "operator", "gelu_with_a_wrong_branch": "operator",
    "softmax_skips_its_tail": "operator", "entropy_counts_a_row_less": "loss", "native_updates_too_long": "optimizer",
    "linear_loses_gradients": "gradient", "one_layer_norm_with_other_eps": "operator",
})  # fmt: skip
"""Native kernels that compute wrongly beside equal windows, and a formula that shows behind its own module."""
LOST = (
    Entry(
        "checks-out-of-memory-beside-a-silu", "doors", "operator",
        inject="doors.checks_out_of_memory,doors.speed_with_silu", workload="doors",
    ),
)  # fmt: skip
STATED = _entries({
    "evaluated_with_dropout": "evaluation", "probe_evaluated_with_dropout": "evaluation", "speed_drops_more": "rng",
    "learn_drops_more": "rng", "third_update_lost": "optimizer", "late_updates_lost": "optimizer",
    "probe_update_lost": "optimizer",
})  # fmt: skip
LONG = _entries({"long_rows_lose_tokens": "operator"})
ROWS = (*LATE, *BEHIND, *KERNELS, *STATED, *LONG)  # LOST is inconclusive, as `tests/faults` holds
