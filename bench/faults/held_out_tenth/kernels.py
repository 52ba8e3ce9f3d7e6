"""Faults of production kernels: attention, linear layers, normalisations, tables, compiled code, number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_tenth.entries import AVX2, NOISE, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # Attention computes a different function of the same queries, keys and values: so for the first three.
    inside("bf16", "attention", "operator", "attention.sdpa_adds_a_distance_bias", AVX2),
    inside("fp16", "attention", "operator", "attention.sdpa_attends_over_heads"),
    inside("fp32", "attention", "operator", "attention.sdpa_keeps_the_largest_scores", NOISE),
    # The same formula, of inputs in fewer bits than the task says.
    inside("bf16", "attention", "precision", "attention.sdpa_queries_and_keys_in_four_bits"),
    # Outputs and loss have the bits of the task's; the gradients behind attention are those of different weights.
    inside("bf16", "attention", "gradient", "attention.sdpa_backward_draws_its_own_masks"),
    # Each head weighs its values by the mean of all heads.
    inside("eager", "attention", "operator", "attention.eager_weights_averaged_over_heads"),
)

KERNELS: tuple[Entry, ...] = (
    # LayerNorm's output is the first that differs.
    inside("eager", "kernels", "operator", "kernels.norm_weight_counts_from_zero", AVX2),
    # GELU's output is the first that differs.
    inside("fp16", "kernels", "operator", "kernels.gelu_clipped_at_one"),
    # A linear layer's output is the first that differs.
    inside("bf16", "kernels", "operator", "kernels.linear_first_tile_is_overwritten", AVX2),
    # Outputs and loss agree, gradients do not: so for the next two.
    inside("fp32", "kernels", "gradient", "kernels.square_gradients_transposed", AVX2),
    inside("fp16", "kernels", "gradient", "kernels.table_gradient_one_row_off", NOISE),
    # The ids are the same; their table's output is the first that differs.
    inside("packed", "kernels", "operator", "kernels.packed_table_reads_a_block_twice", NOISE),
    # An unchanged rerun has different gradients.
    inside("fp16", "kernels", "nondeterminism", "kernels.linear_weight_gradients_race"),
    # Logits agree, the loss does not.
    inside("bf16", "kernels", "loss", "kernels.loss_adjusted_by_frequencies", NOISE),
    # The embeddings of the compiled model differ.
    inside("compiled", "kernels", "operator", "kernels.compiled_places_one_too_far"),
    # Dropout of the compiled model drops different elements of the same input.
    inside("compiled", "kernels", "rng", "kernels.compiled_masks_are_a_constant"),
    # Outputs and loss of the compiled model agree, a weight's gradient misses tokens.
    inside("compiled", "kernels", "gradient", "kernels.compiled_split_sum_loses_a_part"),
)

FORMATS: tuple[Entry, ...] = (
    # The same formula in fewer bits than the task says: of attention's output, of weights, of one module.
    inside("eager", "formats", "precision", "attention.eager_outputs_in_fp8", AVX2),
    inside("fp16", "formats", "precision", "kernels.feed_forward_weights_in_four_bits", AVX2),
    inside("fp32", "formats", "precision", "kernels.speed_pooler_under_autocast", AVX2),
)
