"""Faults of initial values, architecture, random generators, number formats, operators and kernels."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_fifth.entries import inside

__all__ = ["MODEL"]

MODEL: tuple[Entry, ...] = (
    *inside(
        "init",
        "weights.init",
        "weights",
        "gamma_and_beta_exchanged layers_start_alike pooler_starts_as_the_identity encoder_reset_after_loading "
        "checkpoint_in_eight_bits positions_interpolated special_tokens_start_at_zero adapter_merged "
        "head_starts_at_the_prior",
    ),
    *inside(
        "init",
        "model.architecture",
        "weights",
        "head_without_bias query_tied_to_key encoder_a_layer_deeper feed_forward_padded segment_table_of_four "
        "norms_without_shift",
    ),
    *inside("init", "model.architecture", "weights", "decoder_without_bias", "mlm"),
    *inside(
        "rng",
        "rng",
        "randomness",
        "loader_draws_its_base_seed seeded_with_the_step permutation_drawn_at_step_six python_seeded_with_a_string "
        "numpy_draw_per_row dropout_of_the_embeddings tokens_dropped_from_the_embedding",
    ),
    *inside("rng", "rng", "randomness", "special_tokens_hidden_too every_row_hides_the_same_places", "mlm"),
    *inside(
        "precision",
        "precision",
        "precision",
        "activations_in_int8 embedding_table_in_int8 operands_of_two_bf16_parts accumulated_in_bf16 "
        "saved_activations_in_bf16 autocast_from_step_six embedding_gradients_in_bf16 softmax_backward_in_bf16",
    ),
    *inside("precision", "precision", "precision", "token_scores_in_bf16_for_the_loss", "mlm"),
    *inside(
        "operator",
        "operator",
        "attention",
        "scores_capped distance_penalised rotary_positions_added queries_and_keys_normalised heads_in_reverse "
        "a_head_lost_at_step_five mask_of_the_first_row mask_of_the_first_call tokens_blind_to_themselves "
        "every_eighth_key_lost padding_weighs_in_the_denominator",
    ),
    *inside(
        "operator",
        "operator",
        "layers",
        "layer_norm_in_two_groups norm_over_the_batch layer_normalised_first residual_from_the_embeddings "
        "feed_forward_beside_attention layers_in_reverse two_layers_averaged head_input_normalised "
        "scores_pass_a_sigmoid positions_reversed positions_halved sinusoidal_positions",
    ),
    *inside("operator", "operator", "layers", "transform_not_normalised decoder_scaled_by_the_width", "mlm"),
    *inside(
        "kernel",
        "kernel",
        "layers",
        "softmax_through_logsumexp layer_norm_by_two_moments gelu_in_two_terms scores_summed_in_quarters "
        "update_by_reciprocals",
    ),
    *inside(
        "nondeterminism",
        "nondeterminism",
        "randomness",
        "sum_order_autotuned unseeded_dropout rows_lost_to_a_timeout",
    ),
)
