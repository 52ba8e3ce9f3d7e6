"""Faults of the learning curve, of a curve that is resumed, and of its evaluations: probe and `speed` agree."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_ninth.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING", "RESUMES"]

LEARNING: tuple[Entry, ...] = (
    # The same rows with labels of different rows.
    inside("fp16", "learn", "data.labels", "learning.learn_labels_kept_by_place", AVX2),
    # The same rows with a different mask.
    inside("eager", "learn", "tokenization", "learning.learn_mask_of_the_batch_before", AVX2),
    # An unchanged rerun reads different tokens.
    inside("eager", "learn", "nondeterminism", "learning.learn_tokens_dropped_by_unseeded_workers"),
    # Dropout drops different elements of the same input.
    inside("bf16", "learn", "rng", "learning.learn_layers_share_masks"),
    # A module computes a different result: so for the next two.
    inside("fp32", "learn", "operator", "learning.learn_scores_soft_capped"),
    inside("fp32", "learn", "operator", "learning.learn_residuals_one_and_a_half", AVX2),
    # fp16 where the task says bf16.
    inside("bf16", "learn", "precision", "learning.learn_late_steps_in_fp16", NOISE),
    # Logits agree, the loss does not.
    inside("bf16", "learn", "loss", "learning.learn_mean_of_the_hardest", AVX2),
    # The loss agrees, gradients do not: so for the next two.
    inside("bf16", "learn", "gradient", "learning.learn_dropout_gradient_without_its_mask", AVX2),
    inside("fp32", "learn", "gradient", "learning.learn_clips_each_micro_batch"),
    # A different learning rate.
    inside("packed", "learn", "schedule", "learning.learn_rate_halved_after_an_evaluation"),
    # The curve starts from different values.
    inside("fp16", "learn", "weights.init", "learning.learn_rare_tokens_drawn_anew"),
)

RESUMES: tuple[Entry, ...] = (
    # A checkpoint changed moments, and weights.
    inside("fp32", "resume", "optimizer", "resumes.resume_exchanges_moments"),
    inside("eager", "resume", "optimizer", "resumes.resume_leaves_the_pooler_at_its_start"),
    # A different learning rate.
    inside("bf16", "resume", "schedule", "resumes.resume_takes_the_last_rate_for_the_peak", AVX2),
    # Dropout drops different elements of the same input.
    inside("fp16", "resume", "rng", "resumes.resume_starts_its_masks_again"),
    # Rows not read, others earlier.
    inside("fp32", "resume", "data.order", "resumes.resume_skips_batches_of_the_next_epoch", NOISE),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all four: different weights in the first two, dropout, different tokens.
    inside("bf16", "evaluation", "evaluation", "evaluation.evaluation_of_weights_averaged_with_the_first", AVX2),
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_with_cached_casts"),
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_leaves_its_head_training", AVX2),
    inside("packed", "evaluation", "evaluation", "evaluation.evaluation_hides_different_tokens"),
)
