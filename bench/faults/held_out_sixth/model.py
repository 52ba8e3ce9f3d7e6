"""Faults of initial values, architecture, random generators, number formats and operators."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_sixth.entries import inside

__all__ = ["MODEL"]

MODEL: tuple[Entry, ...] = (
    *inside(
        "init",
        "weights.init",
        "weights",
        "checkpoint_pruned older_revision_from_the_cache segment_rows_exchanged pooler_not_in_the_checkpoint "
        "tail_of_a_tensor_unread",
    ),
    *inside(
        "init",
        "model.architecture",
        "weights",
        "head_of_another_family without_a_segment_table keys_and_values_of_a_single_head weight_norm_left_on",
    ),
    *inside(
        "rng",
        "rng",
        "randomness",
        "functional_dropout_left_at_its_default numpy_seeded_by_a_library plugin_seeds_torch_at_step_two",
    ),
    *inside("rng", "rng", "randomness", "whole_words_hidden", "mlm"),
    *inside(
        "precision",
        "precision",
        "precision",
        "keys_and_values_in_fp8 weights_read_in_four_bits tanh_in_fp16 last_layer_under_autocast one_shape_in_tf32",
    ),
    *inside(
        "operator",
        "operator",
        "operators",
        "scores_scaled_by_the_length residuals_scaled_up norm_scale_plus_one pooler_reads_the_last_token "
        "head_scores_capped hard_swish_for_gelu tanh_by_a_fraction",
    ),
    *inside("operator", "operator", "operators", "transform_by_relu", "mlm"),
    *inside(
        "nondeterminism",
        "nondeterminism",
        "randomness",
        "tokens_of_two_rows_raced products_reduced_in_arrival_order",
    ),
    *inside("nondeterminism", "nondeterminism", "randomness", "norm_summed_by_atomics", "clip"),
)
