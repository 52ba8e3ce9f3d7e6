"""Attempts at a wrong pass: small faults of one part of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.faults.injectors.patching import during, wrap_method
from bench.faults.world import TRAIN_ROWS
from plumbline.train import engine, evaluation, learn
from plumbline.train.engine import Engine
from plumbline.train.models import dropout


def _on_optimizer(part: str, change: Callable[[Any], None]) -> None:
    """Change the parameter groups of a part's engine once it is built."""

    def wrap(init: Any) -> Any:
        def made(self: Engine, *given: Any, **named: Any) -> None:
            init(self, *given, **named)
            if self.part == part:
                for group in self.optimizer.param_groups:
                    change(group)

        return made

    wrap_method(Engine, "__init__", wrap)


def learn_without_decay() -> None:
    """The curve has no weight decay."""
    _on_optimizer("learn", lambda group: group.update(weight_decay=0.0))


def learn_with_other_beta2() -> None:
    """The curve's beta2 is 0.9991."""
    _on_optimizer("learn", lambda group: group.update(betas=(0.9, 0.9991)))


def _on(part: str, owner: Any, name: str, change: Callable[..., Any], first: int = 0) -> None:
    """Let `change(plain, ...)` stand for a function while a part trains."""
    active = during(part, first)
    wrap_method(
        owner, name,
        lambda plain: lambda *given, **named: (
            change(plain, *given, **named) if active() else plain(*given, **named)
        ),
    )  # fmt: skip


def learn_with_tanh_gelu() -> None:
    """The curve's GELU is the one by tanh."""
    _on("learn", nn.functional, "gelu", lambda plain, value, **_: plain(value, approximate="tanh"))


def learn_with_softmax_in_bf16() -> None:
    """The curve's attention takes its softmax in bf16."""
    _on("learn", dropout.nn.functional, "softmax", lambda plain, value, dim: plain(value.bfloat16(), dim=dim).float())


def learn_without_clipping() -> None:
    """The curve's gradients are not clipped."""
    _on("learn", engine.torch.nn.utils, "clip_grad_norm_", lambda *_: None)


def learn_with_frozen_masks() -> None:
    """The curve's dropout has the masks of one step."""
    dropout.DropoutClock.starts = lambda *_: None  # type: ignore[method-assign]


def _fed(evaluate: Callable[[], Any], change: Callable[[Any], Any]) -> Any:
    """Evaluate changed batches of the same rows."""
    plain = evaluation.make_loader
    evaluation.make_loader = lambda *given, **named: map(change, plain(*given, **named))
    try:
        return evaluate()
    finally:
        evaluation.make_loader = plain


def _reversed(batch: Any) -> Any:
    rows = batch["row_ids"] - TRAIN_ROWS
    labels = torch.where((rows >= 16) & (rows < 20), 1 - batch["labels"], batch["labels"])
    return {**batch, "labels": labels}


def learn_with_reversed_labels() -> None:
    """Reverse four labels of the curve's evaluation, behind the rows of a window."""
    wrap_method(
        learn, "evaluate",
        lambda plain: lambda model, rows, **named: _fed(lambda: plain(model, rows, **named), _reversed),
    )  # fmt: skip


def learn_with_hidden_tokens() -> None:
    """The curve hides the tokens from the 24th on, from step 5 on."""

    def narrow(plain: Any, self: Engine, piece: Any, share: float) -> Any:
        mask = piece["attention_mask"].clone()
        mask[:, 24:] = 0
        return plain(self, {**piece, "attention_mask": mask}, share)

    _on("learn", Engine, "_forward", narrow, first=5)


def learn_with_class_weights() -> None:
    """The curve's loss weighs its second class by 1.2."""

    def weighted(plain: Any, scores: torch.Tensor, labels: torch.Tensor, **named: Any) -> Any:
        return plain(scores, labels, **named | {"weight": torch.tensor([1.0, 1.2])})

    _on("learn", nn.functional, "cross_entropy", weighted)


def learn_with_frozen_encoder() -> None:
    """The curve trains its head and embeddings alone."""

    def wrap(init: Any) -> Any:
        def made(self: Engine, *given: Any, **named: Any) -> None:
            init(self, *given, **named)
            for name, value in self.bare.named_parameters():
                if self.part == "learn" and ".encoder." in name:
                    value.requires_grad_(False)

        return made

    wrap_method(Engine, "__init__", wrap)


def _unmasked(batch: Any) -> Any:
    return {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}


def learn_evaluated_without_padding() -> None:
    """The curve's evaluation attends to padding."""
    wrap_method(
        learn, "evaluate",
        lambda plain: lambda model, rows, **named: _fed(lambda: plain(model, rows, **named), _unmasked),
    )  # fmt: skip


def learn_evaluated_in_bf16() -> None:
    """The curve is evaluated in bf16."""
    wrap_method(learn, "evaluate", lambda plain: lambda *given, **named: plain(*given, **named | {"precision": "bf16"}))


def speed_without_padding_mask() -> None:
    """The fused attention of speed ignores padding."""

    def without(plain: Any, *given: Any, attn_mask: Any = None, **named: Any) -> Any:
        return plain(*given, **named)

    _on("speed", nn.functional, "scaled_dot_product_attention", without)


def speed_without_decay() -> None:
    """Speed's optimizer has no weight decay."""
    _on_optimizer("speed", lambda group: group.update(weight_decay=0.0))


def speed_with_halved_norm() -> None:
    """Speed's LayerNorm is halved."""
    _on("speed", nn.functional, "layer_norm", lambda plain, *given, **named: plain(*given, **named) * 0.5)


def speed_with_relu() -> None:
    """Speed's GELU is a ReLU."""
    _on("speed", nn.functional, "gelu", lambda _, value, **__: torch.relu(value))


def speed_with_scaled_loss() -> None:
    """Speed's loss is 1% larger."""
    _on("speed", nn.functional, "cross_entropy", lambda plain, *given, **named: plain(*given, **named) * 1.01)


def speed_with_half_of_the_rows() -> None:
    """Speed trains on every second row twice."""

    def half(plain: Any, self: Engine, batch: Any) -> Any:
        return plain(self, {name: values[::2].repeat_interleave(2, dim=0) for name, values in batch.items()})

    _on("speed", Engine, "_micro_batches", half)


def probe_with_late_smoothing() -> None:
    """The probe smooths its labels by 2e-5 from step 4 on."""

    def smoothed(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **named | {"label_smoothing": 2e-5})

    _on("probe", nn.functional, "cross_entropy", smoothed, first=4)


def probe_with_late_scale() -> None:
    """The probe's attention scores are 2e-6 larger from step 3 on."""

    def scaled(plain: Any, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = plain(left, right)
        is_score = found.dim() == 4 and found.shape[-1] == found.shape[-2]
        return found * (1 + 2e-6) if is_score else found

    _on("probe", torch, "matmul", scaled, first=3)


def probe_with_other_eps() -> None:
    """The probe's LayerNorm has an eps of 1e-8 from step 2 on."""

    def changed(plain: Any, *given: Any) -> Any:
        *others, eps = given
        return plain(*others, eps * 1.0e4)

    _on("probe", nn.functional, "layer_norm", changed, first=2)


def probe_with_larger_gradient() -> None:
    """One gradient of the probe is 1e-6 larger from step 4 on."""

    def larger(plain: Any, parameters: Any, *given: Any) -> Any:
        first = next(value for value in parameters if value.grad is not None)
        first.grad.mul_(1 + 1e-6)
        return plain(parameters, *given)

    _on("probe", engine.torch.nn.utils, "clip_grad_norm_", larger, first=4)


def probe_with_other_adam_eps() -> None:
    """The probe's Adam has an eps that is 1% larger."""
    _on_optimizer("probe", lambda group: group.update(eps=group["eps"] * 1.01))


def probe_decays_biases() -> None:
    """The probe decays biases and normalisations, too."""
    _on_optimizer("probe", lambda group: group.update(weight_decay=group["weight_decay"] or 1e-4))
