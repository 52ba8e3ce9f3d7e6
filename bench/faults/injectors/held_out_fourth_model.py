"""Fourth held-out set: faults of initial values, architecture and random generators."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bench.faults.injectors.data import _fetched
from bench.faults.injectors.held_out_third import _change
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from plumbline.train.numerics import seed_generators
from plumbline.train.tasks import masked_lm

# Initial values.


def vocabulary_rows_shifted() -> None:
    """A conversion shifts the rows of the token table by one place."""
    _change(
        lambda model: model.bert.embeddings.word_embeddings.weight.copy_(
            model.bert.embeddings.word_embeddings.weight.roll(1, 0)
        )
    )


def positions_shifted_by_two() -> None:
    """A conversion keeps the two reserved rows of the position table (facebookresearch/fairseq#1187)."""
    _change(
        lambda model: model.bert.embeddings.position_embeddings.weight.copy_(
            model.bert.embeddings.position_embeddings.weight.roll(2, 0)
        )
    )


def feed_forward_shards_exchanged() -> None:
    """A conversion joins the two shards of a feed-forward weight in reverse (sgl-project/sglang#34529)."""
    _change(
        lambda model: model.bert.encoder.layer[0].intermediate.dense.weight.copy_(
            model.bert.encoder.layer[0].intermediate.dense.weight.roll(32, 0)
        )
    )


def query_rows_permuted() -> None:
    """A conversion permutes the query's rows as for rotary embeddings (meta-pytorch/gpt-fast#190)."""

    def change(model: Any) -> None:
        weight = model.bert.encoder.layer[0].attention.self.query.weight
        weight.copy_(weight.clone().view(2, 2, 8, 32).transpose(1, 2).reshape(32, 32))

    _change(change)


def normal_truncated() -> None:
    """Initial values come from a truncated normal distribution (pytorch/torchtitan#4104)."""
    _change(lambda model: [value.clamp_(-0.04, 0.04) for value in model.parameters() if value.dim() > 1])


def output_projections_scaled_down() -> None:
    """Output projections start divided by the root of twice the layers (pytorch/torchtitan#4104)."""
    _change(
        lambda model: [
            value.div_(2) for name, value in model.named_parameters() if name.endswith("output.dense.weight")
        ]
    )


def new_tokens_start_at_the_mean() -> None:
    """The last 16 token vectors start at the table's mean (huggingface/transformers#33325)."""

    def change(model: Any) -> None:
        table = model.bert.embeddings.word_embeddings.weight
        table[-16:] = table.mean(0)

    _change(change)


# Architecture.


def third_class() -> None:
    """The classifier has three classes instead of two."""

    def change(model: Any) -> None:
        old = model.classifier
        model.classifier = nn.Linear(old.in_features, 3)
        with torch.no_grad():
            model.classifier.weight.copy_(torch.cat([old.weight, torch.zeros(1, old.in_features)]))
            model.classifier.bias.zero_()
        model.num_labels = model.config.num_labels = 3

    after_build(change)


class _Adapted(nn.Module):
    """Linear layer with a low-rank adapter beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_a = nn.Linear(layer.in_features, 2, bias=False)
        self.lora_b = nn.Linear(2, layer.out_features, bias=False)
        with torch.no_grad():
            self.lora_a.weight.fill_(0.01)
            self.lora_b.weight.zero_()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the layer's output plus the adapter's, which starts at zero."""
        result: torch.Tensor = self.base_layer(states) + self.lora_b(self.lora_a(states))
        return result


def adapters_injected() -> None:
    """The query layers carry low-rank adapters that start at zero."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.attention.self.query = _Adapted(layer.attention.self.query)

    after_build(change)


def projections_fused() -> None:
    """Query, key and value of a layer are a single parameter (pytorch/torchtitan#3714)."""

    def change(model: Any) -> None:
        attention = model.bert.encoder.layer[0].attention.self
        parts = [attention.query, attention.key, attention.value]
        fused = nn.Linear(32, 96)
        with torch.no_grad():
            fused.weight.copy_(torch.cat([part.weight for part in parts]))
            fused.bias.copy_(torch.cat([part.bias for part in parts]))
        for place, name in enumerate(("query", "key", "value")):
            rows = slice(32 * place, 32 * place + 32)
            delattr(attention, name)
            setattr(
                attention,
                name,
                lambda states, rows=rows: functional.linear(states, fused.weight[rows], fused.bias[rows]),
            )
        attention.qkv = fused

    after_build(change)


def decoder_bias_untied() -> None:
    """The decoder of masked language modelling has its own bias (huggingface/transformers#2521)."""

    def change(model: Any) -> None:
        decoder = model.cls.predictions.decoder
        decoder.bias = nn.Parameter(decoder.bias.detach().clone())

    after_build(change)


def norm_added_before_the_pooler() -> None:
    """A LayerNorm is added between encoder and pooler."""

    def change(model: Any) -> None:
        model.bert.final_norm = nn.LayerNorm(32)
        model.bert.pooler.register_forward_pre_hook(lambda _module, inputs: model.bert.final_norm(inputs[0]))

    after_build(change)


# Random generators.


def seeded_before_the_model() -> None:
    """The generators are seeded before the model draws its initial values."""
    legs = ("probe", "envelope", "portable.leg")

    def wrap(build: Any) -> Any:
        def built(spec: Any, **rest: Any) -> Any:
            seed_generators(spec.seed)
            return build(spec, **rest)

        return built

    replace_everywhere("seed_generators", lambda _seed: lambda _value: None, among=legs)
    replace_everywhere("build_model", wrap, among=legs)


def python_draw_per_batch() -> None:
    """The loader draws a number from Python's generator for each batch."""
    _fetched(lambda _batch: random.random())


def noise_on_embeddings() -> None:
    """Uniform noise is added to the word embeddings (huggingface/transformers#27141)."""

    def noisy(module: Any, _inputs: Any, output: Any) -> Any:
        size = 5 / (output.shape[1] * output.shape[2]) ** 0.5
        return output + torch.zeros_like(output).uniform_(-size, size) if module.training else output

    after_build(lambda model: model.bert.embeddings.word_embeddings.register_forward_hook(noisy))


def layers_dropped() -> None:
    """A fifth of the calls skip the second layer (LayerDrop of fairseq)."""

    def skip(module: nn.Module, inputs: Any, output: Any) -> Any:
        return inputs[0] if module.training and float(torch.rand(())) < 0.2 else output

    after_build(lambda model: model.bert.encoder.layer[1].register_forward_hook(skip))


def more_tokens_hidden() -> None:
    """Masked language modelling hides 20% of the tokens instead of 15%."""
    wrap_method(
        masked_lm._Masking,
        "__init__",
        lambda init: (
            lambda self, spec, rows: init(self, spec.replace(data=spec.data.replace(mask_probability=0.2)), rows)
        ),
    )
