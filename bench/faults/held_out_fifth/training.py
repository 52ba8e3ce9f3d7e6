"""Faults of loss, gradients, optimizer, schedule, evaluation and the learning curve, and pairs of faults."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_fifth.entries import inside, two

__all__ = ["LEARNING", "PAIRS", "TRAINING"]

TRAINING: tuple[Entry, ...] = (
    *inside(
        "loss",
        "loss",
        "loss",
        "loss_in_bits poly_loss margin_taken_off last_row_not_counted loss_flooded labels_mixed_with_predictions "
        "loss_of_the_wrong_class",
    ),
    *inside(
        "loss",
        "loss",
        "loss",
        "padding_counted_in_the_loss summed_over_tokens_averaged_over_rows divided_by_the_first_count",
        "mlm",
    ),
    *inside(
        "gradient",
        "gradient",
        "gradients",
        "gradient_transposed bias_gradients_averaged repeated_tokens_overwrite loss_scale_left_in "
        "one_gradient_misses_a_micro_batch gradients_of_two_layers_exchanged residual_path_detached "
        "pooler_gradient_flipped",
    ),
    *inside(
        "gradient",
        "gradient",
        "gradients",
        "norm_of_one_shard only_matrices_clipped clipped_by_the_weights",
        "clip",
    ),
    *inside("gradient", "gradient", "gradients", "token_table_learns_from_the_decoder_alone", "mlm"),
    *inside(
        "optimizer",
        "optimizer",
        "updates",
        "sign_of_the_momentum rectified_adam momentum_without_second_moment lookahead_weights decay_applied_twice "
        "second_moment_not_corrected moments_start_at_the_gradient second_beta_warmed_up weights_clamped "
        "decay_toward_the_start cautious_updates updates_orthogonalised position_table_twice",
    ),
    *inside(
        "schedule",
        "schedule",
        "schedule",
        "exponential_decay rate_in_stairs warm_up_by_squares decay_counts_the_warm_up decay_ends_a_step_early "
        "rate_printed_and_read_back halved_on_a_plateau group_of_biases_without_warm_up",
    ),
    *inside(
        "evaluation",
        "evaluation",
        "evaluation",
        "threshold_at_the_median answers_one_batch_late divided_by_full_batches answers_gathered_in_fp16 "
        "evaluated_with_one_layer evaluation_grouped_by_length evaluated_with_the_initial_head",
    ),
    *inside("evaluation", "evaluation", "evaluation", "evaluation_reads_hidden_tokens", "mlm"),
)

LEARNING: tuple[Entry, ...] = (
    *inside("learn", "data.labels", "learning", "learn_labels_flipped", "learn"),
    *inside("learn", "data.order", "learning", "learn_epochs_repeat_the_first", "learn"),
    *inside("learn", "weights.init", "learning", "learn_starts_from_a_bf16_checkpoint", "learn"),
    *inside(
        "learn",
        "rng",
        "learning",
        "learn_dropout_doubled learn_dropout_lost_after_an_evaluation learn_masks_repeat "
        "learn_micro_batches_share_masks",
        "learn",
    ),
    *inside("learn", "precision", "learning", "learn_in_bf16", "learn"),
    *inside("learn", "operator", "learning", "learn_attention_not_scaled", "learn"),
    *inside("learn", "loss", "learning", "learn_labels_smoothed", "learn"),
    *inside("learn", "gradient", "learning", "learn_micro_batches_summed", "learn"),
    *inside("learn", "optimizer", "learning", "learn_moments_lost_at_the_checkpoint", "learn"),
    *inside("learn", "schedule", "learning", "learn_schedule_ends_at_half", "learn"),
    *inside("learn", "evaluation", "learning", "learn_evaluated_with_dropout", "learn"),
    *inside("learn", "nondeterminism", "learning", "learn_masks_unseeded", "learn"),
)
"""The probe agrees in all of them."""

PAIRS: tuple[Entry, ...] = (
    two(
        "reverse-and-plateau", "data.content + schedule", "schedule.halved_on_a_plateau", alter="data.words_in_reverse"
    ),
    two(
        "join-and-signs",
        "data.labels + optimizer",
        "updates.sign_of_the_momentum",
        alter="data.labels_joined_by_first_word",
    ),
    two("stride-and-bits", "data.order + loss", "data.batches_strided", "loss.loss_in_bits"),
    two(
        "capitals-and-transposed",
        "tokenization + gradient",
        "gradients.gradient_transposed",
        alter="tokens.capitals_split",
    ),
    two("alike-and-capped", "weights.init + operator", "weights.layers_start_alike", "attention.scores_capped"),
    two(
        "int8-and-exponential",
        "precision + schedule",
        "precision.activations_in_int8",
        "schedule.exponential_decay",
    ),
    two(
        "base-seed-and-threshold",
        "rng + evaluation",
        "randomness.loader_draws_its_base_seed",
        "evaluation.threshold_at_the_median",
    ),
    two("rotary-and-clamped", "operator + optimizer", "attention.rotary_positions_added", "updates.weights_clamped"),
    two("poly-and-fp16-answers", "loss + evaluation", "loss.poly_loss", "evaluation.answers_gathered_in_fp16"),
    two(
        "no-bias-and-cautious",
        "model.architecture + optimizer",
        "weights.head_without_bias",
        "updates.cautious_updates",
    ),
    two(
        "learn-epochs-and-dropout",
        "data.order + evaluation",
        "learning.learn_epochs_repeat_the_first",
        "learning.learn_evaluated_with_dropout",
        workload="learn",
    ),
)
