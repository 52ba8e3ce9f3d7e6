"""Faults of production kernels: attention, linear layers, normalisations, activations, tables, and number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_seventh.entries import AVX2, NOISE, PLAIN, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # The mask is not the task's: the output of attention differs.
    inside("bf16", "attention", "operator", "attention.sdpa_mask_in_blocks_of_eight"),
    # The scale of the scores is a different one.
    inside("fp16", "attention", "operator", "attention.sdpa_scale_of_a_padded_head"),
    # One head reads the keys of a different head.
    inside("bf16", "attention", "operator", "attention.sdpa_last_head_reads_the_first_keys", AVX2),
    # One row of the output is not computed.
    inside("fp32", "attention", "operator", "attention.sdpa_last_query_is_its_neighbour"),
    # Attention is causal where the task's is not.
    inside("packed", "attention", "operator", "attention.sdpa_every_second_layer_is_causal"),
    # Values of two bits of mantissa in a step of bf16: the same formula in fewer bits.
    inside("bf16", "attention", "precision", "attention.sdpa_values_in_fp8"),
    # All outputs and the loss agree, the gradient of the keys does not.
    inside("fp16", "attention", "gradient", "attention.sdpa_key_gradient_scaled_twice", AVX2),
    # All outputs and the loss agree, a head's values get no gradient.
    inside("fp32", "attention", "gradient", "attention.sdpa_value_gradient_of_a_head_lost", NOISE),
    # Dropout of attention that one side alone applies.
    inside("bf16", "attention", "rng", "attention.sdpa_without_dropout"),
    # The same elements are dropped; what attention computes from the rest differs.
    inside("fp16", "attention", "operator", "attention.sdpa_dropout_not_rescaled"),
    # The softmax of eager attention is a different function.
    inside("eager", "attention", "operator", "attention.softmax_of_two_blocks_not_rescaled", AVX2),
    # The mask of packed rows lets texts read each other: tokens are the same, attention differs.
    inside("packed", "attention", "operator", "attention.packed_texts_see_their_neighbour"),
    # Shifted positions.
    inside("packed", "attention", "operator", "attention.packed_positions_run_on", AVX2),
)

KERNELS: tuple[Entry, ...] = (
    # A part of LayerNorm's output is its input.
    inside("bf16", "kernels", "operator", "kernels.norm_skips_its_tail", AVX2),
    # The outputs and the loss agree, gradients behind LayerNorm do not.
    inside("fp16", "kernels", "gradient", "kernels.norm_gradient_without_its_mean"),
    # The same formula with statistics in bf16, of which the task keeps fp32.
    inside("eager", "kernels", "precision", "kernels.norm_statistics_in_bf16"),
    # A part of GELU's output is its input.
    inside("eager", "kernels", "operator", "kernels.gelu_passes_its_tail", NOISE),
    # The outputs and the loss agree, gradients behind GELU do not.
    inside("bf16", "kernels", "gradient", "kernels.gelu_gradient_of_relu"),
    # A product misses terms.
    inside("fp16", "kernels", "operator", "kernels.linear_drops_its_remainder"),
    # The outputs and the loss agree, a weight's gradient misses tokens.
    inside("bf16", "kernels", "gradient", "kernels.linear_gradient_of_half_the_tokens", PLAIN),
    # A different function in the pooler.
    inside("fp16", "kernels", "operator", "kernels.tanh_by_a_ratio", AVX2),
    # The outputs and the loss agree, the table's gradient misses tokens.
    inside("eager", "kernels", "gradient", "kernels.table_gradient_loses_repeated_tokens"),
    # bf16 where the task says fp32.
    inside("fp32", "kernels", "precision", "kernels.products_in_bf16", AVX2),
    # Three bits of mantissa where the task says bf16.
    inside("eager", "kernels", "precision", "kernels.products_in_fp8"),
    # The compiled model has a different activation.
    inside("compiled", "kernels", "operator", "kernels.compiled_gelu_is_relu"),
    # The compiled model has a different normalisation.
    inside("compiled", "kernels", "operator", "kernels.compiled_norm_is_unbiased"),
)

FORMATS: tuple[Entry, ...] = (
    # A loss in half precision.
    inside("bf16", "formats", "precision", "formats.loss_in_bf16"),
    # A different format of 16 bits.
    inside("fp16", "formats", "precision", "formats.bf16_where_fp16_is_asked"),
    # More bits than the task says.
    inside("bf16", "formats", "precision", "formats.autocast_without_effect", AVX2),
    # Gradients of fewer bits; all outputs agree.
    inside("fp32", "formats", "precision", "formats.gradients_summed_in_bf16"),
)
