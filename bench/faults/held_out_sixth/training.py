"""Faults of loss, gradients, optimizer, schedule, evaluation and the learning curve, and pairs of faults."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_sixth.entries import inside, two

__all__ = ["LEARNING", "PAIRS", "TRAINING"]

TRAINING: tuple[Entry, ...] = (
    *inside(
        "loss",
        "loss",
        "loss",
        "scores_adjusted_by_class_shares generalised_cross_entropy outlier_left_out_of_the_loss",
    ),
    *inside("loss", "loss", "loss", "last_vocabulary_shard_missing_in_the_sum", "mlm"),
    *inside(
        "gradient",
        "gradient",
        "gradients",
        "norm_gradients_not_reduced key_gradient_not_scaled softmax_backward_without_its_sum "
        "last_row_sends_no_gradient cleared_between_micro_batches",
    ),
    *inside("gradient", "gradient", "gradients", "clipped_group_by_group clipping_starts_after_a_warm_up", "clip"),
    *inside(
        "optimizer",
        "optimizer",
        "updates",
        "belief_in_the_second_moment momentum_cycled no_decay_list_matches_too_much updates_clipped_by_their_size "
        "decay_only_where_signs_agree first_moment_not_corrected decay_at_every_fourth_update",
    ),
    *inside(
        "schedule",
        "schedule",
        "schedule",
        "one_cycle warm_up_starts_at_a_tenth triangular_cycles boundary_step_repeated",
    ),
    *inside(
        "evaluation",
        "evaluation",
        "evaluation",
        "evaluated_as_int8_model evaluated_by_an_export long_rows_not_evaluated evaluation_padded_on_the_left "
        "evaluation_labels_one_row_late evaluation_encodes_with_a_smaller_vocabulary",
    ),
)

LEARNING: tuple[Entry, ...] = (
    *inside("learn", "data.labels", "learning", "learn_labels_shifted_in_the_second_epoch", "learn"),
    *inside("learn", "data.order", "restarts", "learn_resume_repeats_the_epoch", "learn"),
    *inside("learn", "tokenization", "learning", "learn_second_epoch_reads_old_tokens", "learn"),
    *inside("learn", "weights.init", "learning", "learn_head_drawn_anew", "learn"),
    *inside("learn", "rng", "learning", "learn_dropout_raised_in_the_second_epoch", "learn"),
    *inside("learn", "precision", "learning", "learn_autocast_left_on_by_the_evaluation", "learn"),
    *inside("learn", "operator", "learning", "learn_norm_compiled_again_at_step_twenty", "learn"),
    *inside("learn", "loss", "learning", "learn_classes_weighted_in_the_second_epoch", "learn"),
    *inside("learn", "gradient", "restarts", "learn_clipping_lost_at_the_checkpoint", "learn"),
    *inside("learn", "gradient", "learning", "learn_layer_frozen_in_the_second_epoch", "learn"),
    *inside(
        "learn",
        "optimizer",
        "restarts",
        "learn_decay_of_the_default_after_the_checkpoint learn_update_count_lost_at_the_checkpoint",
        "learn",
    ),
    *inside("learn", "schedule", "learning", "learn_schedule_steps_once_an_epoch", "learn"),
    *inside("learn", "schedule", "restarts", "learn_warm_up_again_after_the_checkpoint", "learn"),
    *inside("learn", "evaluation", "learning", "learn_first_evaluation_repeated", "learn"),
    *inside("learn", "nondeterminism", "learning", "learn_rows_raced_in_the_second_epoch", "learn"),
)
"""The probe agrees in all of them."""

PAIRS: tuple[Entry, ...] = (
    two(
        "references-and-triangles",
        "data.content + schedule",
        "schedule.triangular_cycles",
        alter="data.characters_written_as_references",
    ),
    two(
        "filled-labels-and-clipped-updates",
        "data.labels + optimizer",
        "updates.updates_clipped_by_their_size",
        alter="data.missing_labels_filled_forward",
    ),
    two("longest-and-capped", "data.order + operator", "data.longest_batch_first", "operators.head_scores_capped"),
    two(
        "latin-and-outliers",
        "tokenization + loss",
        "loss.outlier_left_out_of_the_loss",
        alter="tokens.vocabulary_read_as_latin_1",
    ),
    two(
        "pruned-and-unscaled",
        "weights.init + gradient",
        "weights.checkpoint_pruned",
        "gradients.key_gradient_not_scaled",
    ),
    two(
        "fp8-and-int8-evaluation",
        "precision + evaluation",
        "precision.keys_and_values_in_fp8",
        "evaluation.evaluated_as_int8_model",
    ),
    two("plotting-and-one-cycle", "rng + schedule", "randomness.numpy_seeded_by_a_library", "schedule.one_cycle"),
    two(
        "hard-swish-and-belief",
        "operator + optimizer",
        "operators.hard_swish_for_gelu",
        "updates.belief_in_the_second_moment",
    ),
    two(
        "learn-resume-and-decay",
        "data.order + optimizer",
        "restarts.learn_resume_repeats_the_epoch",
        "restarts.learn_decay_of_the_default_after_the_checkpoint",
        workload="learn",
    ),
)
