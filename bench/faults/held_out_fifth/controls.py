"""Benign changes: the same training by a different path."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_fifth.entries import files, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    *files("control", "", "tokens", "tokenizer_file_rewritten"),
    *inside("control", "", "tokens", "texts_encoded_one_by_one columns_read_without_datasets"),
    *inside(
        "control",
        "",
        "controls",
        "mask_filled_not_added states_cloned_between_layers loader_of_plain_slices model_saved_and_loaded "
        "gradients_in_a_flat_buffer residuals_added_in_place log_softmax_and_nll anomaly_mode "
        "backward_hooks_everywhere evaluated_in_inference_mode parameters_in_reverse_order groups_split_in_halves "
        "activations_offloaded feed_forward_recomputed",
    ),
    *inside("control", "", "controls", "learn_masks_by_numpy learn_saved_every_fifth_step", "learn"),
    *inside(
        "control",
        "",
        "releases",
        "attention_in_key_blocks update_with_folded_corrections gelu_from_the_left norm_by_products linear_by_einsum "
        "products_by_rows products_transposed",
    ),
    *inside("control", "", "releases", "loss_in_chunks", "mlm"),
    Entry("onednn-for-sse41", "control", "", environment={"ONEDNN_MAX_CPU_ISA": "SSE41"}),
    Entry("mkl-for-avx2", "control", "", environment={"MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
)
