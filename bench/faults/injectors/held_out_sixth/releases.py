"""Sixth held-out set: releases that compute the same with different rounding, as the fingerprint shows."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.optim import adamw
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_fifth.updates import _decay
from bench.faults.injectors.held_out_fourth_controls import _new_transformers
from bench.faults.injectors.held_out_model import _new_release
from bench.faults.injectors.training import _clip, _entropy


def attention_by_einsum() -> None:
    """A release of transformers computes attention's products by einsum."""
    _new_transformers()

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        weights = functional.softmax(scores if mask is None else scores + mask, dim=-1)
        return torch.einsum("bhqk,bhkd->bqhd", weights, v).contiguous(), weights

    modeling_bert.eager_attention_forward = attend


def heads_in_a_loop() -> None:
    """A release of transformers computes the heads one after the other."""
    _new_transformers()
    forward = modeling_bert.eager_attention_forward

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **rest: Any) -> Any:
        parts = [
            forward(module, *(value[:, head : head + 1] for value in (q, k, v)), mask, **rest)
            for head in range(q.shape[1])
        ]
        return torch.cat([output for output, _ in parts], 2), torch.cat([weights for _, weights in parts], 1)

    modeling_bert.eager_attention_forward = attend


def embeddings_stacked_and_summed() -> None:
    """A release of transformers stacks the three embeddings and sums over the stack."""
    _new_transformers()

    def forward(self: Any, input_ids: Any = None, token_type_ids: Any = None, **_rest: Any) -> Any:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        words, segments = self.word_embeddings(input_ids), self.token_type_embeddings(types)
        places = self.position_embeddings(self.position_ids[:, : input_ids.shape[1]]).expand_as(words)
        return self.dropout(self.LayerNorm(torch.stack((words, places, segments)).sum(0)))

    modeling_bert.BertEmbeddings.forward = forward


def hidden_scores_at_minus_ten_thousand() -> None:
    """A release of transformers masks with -10000 instead of the smallest number; hidden weights are zero in both."""
    _new_transformers()
    forward = modeling_bert.eager_attention_forward

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, **rest: Any) -> Any:
        return forward(module, q, k, v, None if mask is None else mask.clamp(min=-10000.0), **rest)

    modeling_bert.eager_attention_forward = attend


def norm_statistics_of_two_halves() -> None:
    """A release of torch joins LayerNorm's mean and variance from two halves of the features."""
    _new_release()

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        halves = value.unflatten(-1, (2, -1))
        means = halves.mean(-1, keepdim=True)
        within = ((halves - means) * (halves - means)).mean(-1).mean(-1, keepdim=True)
        distance = (means[..., 0, :] - means[..., 1, :]) * 0.5
        mean = (means[..., 0, :] + means[..., 1, :]) * 0.5
        scaled = (value - mean) * torch.rsqrt(within + distance * distance + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def linear_in_blocks_of_outputs() -> None:
    """A release of torch computes linear layers in two blocks of outputs."""
    _new_release()
    linear = functional.linear

    def blocks(x: Any, w: Any, b: Any = None) -> Any:
        half = max(1, len(w) // 2)
        biases = (None, None) if b is None else (b[:half], b[half:])
        return torch.cat([linear(x, w[:half], biases[0]), linear(x, w[half:], biases[1])], -1)

    functional.linear = blocks


def linear_starts_from_its_bias() -> None:
    """A release of torch computes linear layers as sums that start from the bias."""
    _new_release()

    def linear(x: Any, w: Any, b: Any = None) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        product = flat @ w.t() if b is None else torch.addmm(b, flat, w.t())
        return product.reshape(*x.shape[:-1], -1)

    functional.linear = linear


def loss_over_one_hot_labels() -> None:
    """A release of torch sums the loss over all classes with labels of ones and zeros."""
    _new_release()

    def wrap(_whole: Any) -> Any:
        def summed(scores: Any, labels: Any, *args: Any, **rest: Any) -> Any:
            chosen = functional.one_hot(labels, scores.shape[-1]).to(scores)
            return (functional.log_softmax(scores, dim=-1) * chosen * -1.0).sum(-1).mean()

        return summed

    _entropy(wrap)


def moments_by_interpolation() -> None:
    """A release of torch computes both moments as the old value plus a share of the difference."""
    _new_release()

    @torch.no_grad()
    def step(self: Any, _closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state |= {
                        "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(value),
                        "exp_avg_sq": torch.zeros_like(value),
                    }  # fmt: skip
                state["step"] += 1
                count = float(state["step"])
                first, second = state["exp_avg"], state["exp_avg_sq"]
                first.add_((value.grad - first) * (1 - beta1))
                second.add_((value.grad * value.grad - second) * (1 - beta2))
                size = (second / (1 - beta2**count)).sqrt() + group["eps"]
                _decay(group, value)
                value.sub_(first / (1 - beta1**count) / size * group["lr"])

    adamw.AdamW.step = step


def clipping_norm_in_fp64() -> None:
    """A release of torch sums the norm for clipping in fp64."""
    _new_release()

    def clip(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        total = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
        factor = (most / (total + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient))
        return total

    _clip(lambda _clip: clip)


def softmax_summed_in_reverse() -> None:
    """A release of torch sums the exponentials of a softmax from the last to the first."""
    _new_release()
    softmax = functional.softmax

    def turned(value: Any, dim: int | None = None, **rest: Any) -> Any:
        raised = (value - value.amax(-1, keepdim=True)).exp()
        total = raised.flip(-1).sum(-1, keepdim=True)
        return raised / total if dim in (-1, None) else softmax(value, dim=dim, **rest)

    functional.softmax = turned
