"""Faults of production kernels: attention, linear layers, normalisations, tables, compiled code, number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eleventh.entries import AVX2, NOISE, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # Attention computes a different function of the same queries, keys and values.
    inside("bf16", "attention", "operator", "attention.sdpa_rotates_queries_and_keys", AVX2),
    # The same formula, with a part of it in eight bits where the task says fp32.
    inside("fp32", "attention", "precision", "attention.sdpa_scores_in_fp8", AVX2),
    # Outputs and loss agree; queries and keys get a different gradient.
    inside("bf16", "attention", "gradient", "attention.sdpa_gradients_of_queries_and_keys_exchanged"),
    # Each token's weights are a different function of its scores.
    inside("eager", "attention", "operator", "attention.eager_scores_through_a_sigmoid"),
    # Tokens and masks reach the model; attention of one layer computes without the mask.
    inside("packed", "attention", "operator", "attention.packed_last_layer_reads_whole_rows", NOISE),
)

KERNELS: tuple[Entry, ...] = (
    # LayerNorm's output is the first that differs.
    inside("fp16", "kernels", "operator", "kernels.norm_statistics_of_two_tokens", AVX2),
    # GELU's output is the first that differs.
    inside("bf16", "kernels", "operator", "kernels.gelu_is_zero_below_minus_one", NOISE),
    # The output of a layer is the first that differs: some tokens have that of different tokens.
    inside("bf16", "kernels", "operator", "kernels.first_layer_repeats_a_chunk"),
    # An unchanged rerun has different outputs.
    inside("bf16", "kernels", "nondeterminism", "kernels.norm_reads_whichever_statistics_are_ready"),
    # Outputs, masks and loss agree, gradients do not: so for the next three.
    inside("fp16", "kernels", "gradient", "kernels.dropout_gradient_not_rescaled"),
    inside("packed", "kernels", "gradient", "kernels.table_gradients_divided_by_counts"),
    inside("fp16", "kernels", "gradient", "kernels.loss_gradient_of_one_class", AVX2),
    # The product's output is the first that differs.
    inside("packed", "kernels", "operator", "kernels.decoder_leaves_its_last_tile_at_zero", NOISE),
    # LayerNorm's output in the compiled model is the first that differs.
    inside("compiled", "kernels", "operator", "kernels.compiled_norm_hoists_its_statistics"),
    # Outputs and loss of the compiled model agree, gradients behind GELU do not.
    inside("compiled", "kernels", "gradient", "kernels.compiled_gelu_gradient_of_its_output"),
    # Logits of the compiled model agree, its loss does not.
    inside("compiled", "kernels", "loss", "kernels.compiled_loss_adds_an_eps"),
)

FORMATS: tuple[Entry, ...] = (
    # The same formula in fewer bits than the task says: of one summand, of factors, of products.
    inside("compiled", "formats", "precision", "kernels.compiled_residuals_in_four_bits", NOISE),
    inside("fp32", "formats", "precision", "kernels.speed_products_of_ten_bits", AVX2),
    inside("eager", "formats", "precision", "kernels.feed_forward_sums_in_fp8", AVX2),
)
