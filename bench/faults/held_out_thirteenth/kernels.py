"""Faults of production kernels: attention, linear layers, normalisations, tables, compiled code, number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_thirteenth.entries import AVX2, NOISE, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # Attention computes a different function of its queries, keys and values: so for the first two.
    inside("bf16", "attention", "operator", "attention.sdpa_scores_by_distance", AVX2),
    inside("fp16", "attention", "operator", "attention.sdpa_reads_pages_of_a_different_text", AVX2),
    # Outputs and loss agree; queries, keys and values get different gradients.
    inside("bf16", "attention", "gradient", "attention.sdpa_reads_its_gradient_without_strides", AVX2),
    # Masks and tokens reach the model; attention opens a place that its mask closes.
    inside("packed", "attention", "operator", "attention.packed_tokens_read_the_first_of_their_row", NOISE),
    # Attention's output is the first that differs.
    inside("eager", "attention", "operator", "attention.eager_softmax_over_all_heads"),
    # Outputs and loss of the compiled model agree, gradients do not.
    inside("compiled", "attention", "gradient", "attention.compiled_late_values_without_gradient", NOISE),
)

KERNELS: tuple[Entry, ...] = (
    # LayerNorm's output is the first that differs.
    inside("fp16", "kernels", "operator", "kernels.norm_by_the_mean_absolute_deviation", AVX2),
    # The first feed-forward product's output is the first that differs.
    inside("fp32", "kernels", "operator", "kernels.products_of_sparse_weights", AVX2),
    # Outputs agree; an unchanged rerun has different gradients.
    inside("fp32", "kernels", "nondeterminism", "kernels.table_gradients_lost_in_races"),
    # Outputs and loss agree, gradients do not: so for the next three.
    inside("fp16", "kernels", "gradient", "kernels.residual_gradient_counted_twice"),
    inside("packed", "kernels", "gradient", "kernels.vocabulary_gradient_of_the_last_chunk"),
    inside("bf16", "kernels", "gradient", "kernels.square_input_gradient_by_the_transposed_weight", NOISE),
    # Tables agree; the embeddings' LayerNorm is the first that differs.
    inside("fp32", "kernels", "operator", "kernels.positions_added_behind_the_norm", NOISE),
    # Logits agree, the loss does not.
    inside("fp32", "kernels", "loss", "kernels.loss_is_the_brier_score", AVX2),
    # Logits of the compiled model agree, its loss does not.
    inside("compiled", "kernels", "loss", "kernels.compiled_loss_reads_the_label_before"),
    # The pooler's output in the compiled model is the first that differs.
    inside("compiled", "kernels", "operator", "kernels.compiled_pooler_loses_a_stride", NOISE),
)

FORMATS: tuple[Entry, ...] = (
    # The same formula in fewer bits than the task says: of products, sums, states and keys.
    inside("compiled", "formats", "precision", "kernels.compiled_products_of_eight_bit_floats"),
    inside("fp32", "formats", "precision", "attention.sdpa_accumulates_in_bf16", AVX2),
    inside("bf16", "formats", "precision", "kernels.layers_exchange_eight_bits", AVX2),
    inside("eager", "formats", "precision", "attention.eager_keys_in_two_bits"),
)
