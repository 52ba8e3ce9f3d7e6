"""Faults of production kernels: attention, linear layers, normalisations, tables, compiled code, number formats."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_ninth.entries import AVX2, NOISE, inside

__all__ = ["ATTENTION", "FORMATS", "KERNELS"]

ATTENTION: tuple[Entry, ...] = (
    # The softmax has more terms than the task's: the output of attention is the first that differs.
    inside("bf16", "attention", "operator", "attention.sdpa_tile_padding_in_the_softmax"),
    # The rows' own masks reach the model; attention computes with a different one.
    inside("fp16", "attention", "operator", "attention.sdpa_mask_of_the_first_row", AVX2),
    # Attention's output has its elements in different places.
    inside("fp32", "attention", "operator", "attention.sdpa_output_interleaves_its_heads", NOISE),
    # Outputs and loss agree; queries and keys get a different gradient.
    inside("bf16", "attention", "gradient", "attention.sdpa_backward_without_its_row_sum", AVX2),
    # An unchanged rerun differs from itself, before any other cause can be named.
    inside("bf16", "attention", "nondeterminism", "attention.sdpa_reads_uninitialised_memory"),
    # Padding has a weight in attention where the task's has none.
    inside("eager", "attention", "operator", "attention.eager_scores_multiplied_by_the_mask", AVX2),
    # Tokens are the same; attention does not read some of them.
    inside("packed", "attention", "operator", "attention.packed_late_keys_not_read", NOISE),
)

KERNELS: tuple[Entry, ...] = (
    # LayerNorm's output is the first that differs.
    inside("fp16", "kernels", "operator", "kernels.norm_rows_past_a_block"),
    # Outputs and loss agree, gradients do not: so for the next five.
    inside("bf16", "kernels", "gradient", "kernels.norm_gradients_exchanged"),
    inside("fp32", "kernels", "gradient", "kernels.norm_gradient_of_a_stale_deviation", AVX2),
    inside("fp16", "kernels", "gradient", "kernels.bias_gradient_is_a_mean", AVX2),
    inside("packed", "kernels", "gradient", "kernels.tied_table_without_the_decoder"),
    inside("compiled", "kernels", "gradient", "kernels.compiled_residual_without_gradient"),
    # Logits agree, the loss does not.
    inside("packed", "kernels", "loss", "kernels.packed_loss_over_ignored_tokens"),
    # The embeddings of the compiled model differ.
    inside("compiled", "kernels", "operator", "kernels.compiled_segments_added_twice"),
)

FORMATS: tuple[Entry, ...] = (
    # The same formula in fewer bits: of weights, of activations, of the gradients of activations.
    inside("compiled", "formats", "precision", "kernels.compiled_weights_in_eight_bits", NOISE),
    inside("fp16", "formats", "precision", "kernels.gelu_outputs_in_eight_bits"),
    inside("fp32", "formats", "precision", "kernels.gradients_passed_in_bf16"),
)
