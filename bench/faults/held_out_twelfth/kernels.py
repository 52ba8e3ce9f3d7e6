"""Faults of production kernels: attention, linear layers, normalisations, tables, compiled code, number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_twelfth.entries import AVX2, NOISE, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # Attention computes a different function of the same queries, keys and values: so for the first two.
    inside("bf16", "attention", "operator", "attention.sdpa_accumulates_onto_its_values", AVX2),
    inside("fp16", "attention", "operator", "attention.sdpa_leaves_its_first_queries_at_zero", AVX2),
    # Outputs and loss agree; values get a different gradient.
    inside("bf16", "attention", "gradient", "attention.sdpa_value_gradients_summed_over_heads", AVX2),
    # Masks reach the model; attention applies them at a different place of its formula.
    inside("eager", "attention", "operator", "attention.eager_weights_masked_after_the_softmax"),
    # Tokens and masks reach the model; attention leaves out a part of each row.
    inside("packed", "attention", "operator", "attention.packed_tokens_do_not_read_themselves", NOISE),
)

KERNELS: tuple[Entry, ...] = (
    # LayerNorm's output is the first that differs.
    inside("fp16", "kernels", "operator", "kernels.norm_over_the_axis_of_tokens", AVX2),
    # The activation's output is the first that differs.
    inside("bf16", "kernels", "operator", "kernels.gelu_is_a_squared_relu", NOISE),
    # An unchanged rerun has different outputs.
    inside("fp32", "kernels", "nondeterminism", "kernels.pooler_reads_before_it_is_written"),
    # Outputs, masks and loss agree, gradients do not: so for the next three.
    inside("fp16", "kernels", "gradient", "kernels.pooler_gradient_given_to_every_token"),
    inside("packed", "kernels", "gradient", "kernels.loss_gradient_of_ignored_tokens"),
    inside("bf16", "kernels", "gradient", "kernels.gelu_keeps_a_slope_of_the_first_text", AVX2),
    # The head's output is the first that differs.
    inside("packed", "kernels", "operator", "kernels.head_loses_its_norm", NOISE),
    # The ids are the same; what their table returns is the first that differs.
    inside("fp32", "kernels", "operator", "kernels.table_of_tokens_scaled_by_the_width", AVX2),
    # Logits agree, the loss does not.
    inside("fp32", "kernels", "loss", "kernels.loss_has_a_margin", NOISE),
    # A block's output in the compiled model is the first that differs.
    inside("compiled", "kernels", "operator", "kernels.compiled_residual_one_token_off"),
    # Outputs and loss of the compiled model agree, gradients do not.
    inside("compiled", "kernels", "gradient", "kernels.compiled_position_gradients_averaged", NOISE),
    # Logits of the compiled model agree, its loss does not.
    inside("compiled", "kernels", "loss", "kernels.compiled_loss_in_base_two"),
)

FORMATS: tuple[Entry, ...] = (
    # The same formula in fewer bits than the task says: of weights, of an output, of a product's inputs.
    inside("fp32", "formats", "precision", "kernels.projections_with_weights_in_bf16", AVX2),
    inside("bf16", "formats", "precision", "kernels.pooled_values_in_fp8", AVX2),
    inside("eager", "formats", "precision", "kernels.feed_forward_inputs_in_four_bits"),
)
