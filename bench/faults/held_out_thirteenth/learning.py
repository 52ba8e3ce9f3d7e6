"""Faults of the learning curve, of a curve that is resumed, and of its evaluations: probe and `speed` agree."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_thirteenth.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING", "RESUMES"]

LEARNING: tuple[Entry, ...] = (
    # The same texts with labels of different rows, from the second step on.
    inside("bf16", "learn", "data.labels", "learning.learn_labels_turn_with_the_step", AVX2),
    # The same rows in a different order, from the second epoch on.
    inside("fp32", "learn", "data.order", "learning.learn_shuffles_batches_for_its_second_epoch", AVX2),
    # The same rows with different ids and masks.
    inside("eager", "learn", "tokenization", "learning.learn_repeats_texts_to_fill_rows", AVX2),
    # Dropout drops different elements of the same input.
    inside("fp16", "learn", "rng", "learning.learn_masks_shared_by_rows", AVX2),
    # A feed-forward block's output is the first that differs.
    inside("bf16", "learn", "operator", "learning.learn_feed_forward_mixes_neighbours", NOISE),
    # bf16 where the task says fp32.
    inside("fp32", "learn", "precision", "learning.learn_tables_in_bf16", AVX2),
    # The loss agrees, gradients of normalisations do not.
    inside("fp32", "learn", "gradient", "learning.learn_norms_frozen"),
    # Gradients and rate agree, weights after the update do not.
    inside("packed", "learn", "optimizer", "learning.learn_momentum_restarts", NOISE),
    # A different learning rate.
    inside("bf16", "learn", "schedule", "learning.learn_rate_falls_at_a_milestone", AVX2),
    # The curve starts from different values.
    inside("fp16", "learn", "weights.init", "learning.learn_starts_from_compressed_matrices", AVX2),
    # An unchanged rerun has different outputs.
    inside("eager", "learn", "nondeterminism", "learning.learn_skips_blocks_by_chance"),
)

RESUMES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not.
    inside("fp32", "resume", "optimizer", "learning.resume_reads_roots_of_second_moments", AVX2),
    # The loss agrees, gradients of the tables do not.
    inside("eager", "resume", "gradient", "learning.resume_leaves_its_tables_frozen"),
    # A different learning rate.
    inside("fp16", "resume", "schedule", "learning.resume_takes_micro_batches_for_steps", NOISE),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all four: a loss of earlier evaluations, an accuracy by class, an exponential of the loss, and
    # rows that are read more than once.
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_reports_a_smoothed_loss", AVX2),
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_averages_its_classes"),
    inside("packed", "evaluation", "evaluation", "evaluation.evaluation_reports_its_perplexity", NOISE),
    inside("eager", "evaluation", "evaluation", "evaluation.evaluation_draws_its_rows", AVX2),
)
