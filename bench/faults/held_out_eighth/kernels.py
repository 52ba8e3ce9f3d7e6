"""Faults of production kernels: attention, linear layers, normalisations, activations, tables, and number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eighth.entries import AVX2, NOISE, PLAIN, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # Attention is causal where the task's is not.
    inside("fp32", "attention", "operator", "attention.sdpa_causal_without_a_mask"),
    # Attention weighs values of different tokens.
    inside("fp16", "attention", "operator", "attention.sdpa_values_read_without_strides"),
    # The mask is not the task's: the output of attention differs.
    inside("bf16", "attention", "operator", "attention.sdpa_window_of_four", NOISE),
    # One row's output is made of values of a different row.
    inside("fp32", "attention", "operator", "attention.sdpa_values_of_the_row_before", AVX2),
    # The outputs and the loss agree, queries get no gradient.
    inside("bf16", "attention", "gradient", "attention.sdpa_query_gradient_of_a_tile_lost", AVX2),
    # Dropout drops different elements.
    inside("bf16", "attention", "rng", "attention.sdpa_masks_repeat"),
    # fp16 where the task says fp32.
    inside("fp32", "attention", "precision", "attention.sdpa_inputs_in_half", AVX2),
    # The mask of packed rows is not the task's: tokens are the same, attention differs.
    inside("packed", "attention", "operator", "attention.packed_boundaries_one_token_late", NOISE),
    # Shifted positions.
    inside("packed", "attention", "operator", "attention.packed_positions_start_at_one"),
    # A different attention scale.
    inside("eager", "attention", "operator", "attention.eager_scores_divided_by_the_layer"),
    # More bits than the task says.
    inside("eager", "attention", "precision", "attention.eager_attention_out_of_autocast"),
    # Fewer bits than the task says.
    inside("eager", "attention", "precision", "attention.eager_probabilities_in_fp8", AVX2),
    # Dropout drops different elements.
    inside("eager", "attention", "rng", "attention.eager_masks_shared_by_heads"),
)

KERNELS: tuple[Entry, ...] = (
    # A different normalisation.
    inside("fp16", "kernels", "operator", "kernels.norm_replaced_by_rms_norm"),
    # A different variance.
    inside("bf16", "kernels", "operator", "kernels.norm_of_unmerged_halves"),
    # The outputs and the loss agree, LayerNorm's weights get a part of their gradient.
    inside("eager", "kernels", "gradient", "kernels.norm_gradient_loses_the_last_text", AVX2),
    # The outputs and the loss agree, gradients behind GELU do not.
    inside("fp16", "kernels", "gradient", "kernels.gelu_gradient_without_its_density"),
    # A different variant of GELU.
    inside("fp32", "kernels", "operator", "kernels.fast_gelu_where_strictness_is_off", AVX2),
    # The outputs and the loss agree, gradients behind the pooler do not.
    inside("fp32", "kernels", "gradient", "kernels.tanh_gradient_of_its_input"),
    # Two outputs of a product are exchanged.
    inside("fp16", "kernels", "operator", "kernels.linear_columns_exchanged", AVX2),
    # A product with a different matrix.
    inside("bf16", "kernels", "operator", "kernels.square_weights_not_transposed", PLAIN),
    # The outputs and the loss agree, gradients behind a product do not.
    inside("bf16", "kernels", "gradient", "kernels.linear_input_gradient_loses_its_tail", AVX2),
    # The table's output is scaled.
    inside("eager", "kernels", "operator", "kernels.table_rows_limited_in_norm", NOISE),
    # The outputs and the loss agree, rows of a table get no gradient.
    inside("packed", "kernels", "gradient", "kernels.table_gradient_of_late_positions_lost"),
    # Logits agree, the loss does not.
    inside("packed", "kernels", "loss", "kernels.loss_mean_of_chunk_means", NOISE),
    # The compiled model has a different attention scale.
    inside("compiled", "kernels", "operator", "kernels.compiled_attention_scaled_twice"),
    # The compiled model has a different loss of the same logits.
    inside("compiled", "kernels", "loss", "kernels.compiled_loss_is_smoothed"),
)

FORMATS: tuple[Entry, ...] = (
    # More bits than the task says, in one kind of module: so for the first two.
    inside("bf16", "formats", "precision", "formats.feed_forward_out_of_autocast", AVX2),
    inside("fp16", "formats", "precision", "formats.pooler_out_of_autocast"),
    # Fewer bits than the task says: so for the rest.
    inside("fp16", "formats", "precision", "formats.norm_outputs_in_bf16", AVX2),
    inside("bf16", "formats", "precision", "formats.tables_in_fp8", NOISE),
    inside("eager", "formats", "precision", "formats.logits_in_fp8"),
    inside("fp16", "formats", "precision", "formats.gradients_kept_in_fp8"),
    inside("fp32", "formats", "precision", "formats.products_of_fp32_in_half"),
)
