"""Faults of the learning curve, of a curve that is resumed, and of its evaluations: probe and `speed` agree."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eleventh.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING", "RESUMES"]

LEARNING: tuple[Entry, ...] = (
    # The same rows with different labels, in one batch.
    inside("bf16", "learn", "data.labels", "learning.learn_labels_of_a_late_batch_reversed", AVX2),
    # The same rows in a different order, from the second epoch on.
    inside("fp32", "learn", "data.order", "learning.learn_second_epoch_begins_in_its_middle", AVX2),
    # The same rows with ids at different places.
    inside("eager", "learn", "tokenization", "learning.learn_reads_texts_backwards", AVX2),
    # Dropout drops different elements of the same input.
    inside("fp16", "learn", "rng", "learning.learn_masks_of_rows_in_reverse", AVX2),
    # Attention's output is the first that differs.
    inside("bf16", "learn", "operator", "learning.learn_heads_share_values", AVX2),
    # bf16 where the task says fp32.
    inside("fp32", "learn", "precision", "learning.learn_gelu_in_bf16", AVX2),
    # Logits agree, the loss does not.
    inside("bf16", "learn", "loss", "learning.learn_loss_has_a_polynomial_term", NOISE),
    # The loss agrees, the gradients of all parameters before the head do not.
    inside("fp32", "learn", "gradient", "learning.learn_gradient_reversed_before_the_head"),
    # Gradients and rate agree, weights after the update do not.
    inside("packed", "learn", "optimizer", "learning.learn_first_beta_follows_the_rate", NOISE),
    # A different learning rate.
    inside("bf16", "learn", "schedule", "learning.learn_rate_changes_by_epoch", AVX2),
    # The curve starts from different values.
    inside("eager", "learn", "weights.init", "learning.learn_starts_pruned", AVX2),
    # An unchanged rerun has different gradients.
    inside("eager", "learn", "nondeterminism", "learning.learn_gradients_added_twice_by_chance"),
)

RESUMES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not.
    inside("bf16", "resume", "optimizer", "learning.resume_takes_the_betas_of_its_own_configuration", AVX2),
    # A different learning rate.
    inside("fp32", "resume", "schedule", "learning.resume_holds_the_rate_of_its_checkpoint", NOISE),
    # Rows read again, others not at all.
    inside("fp16", "resume", "data.order", "learning.resume_reads_its_epoch_from_the_start"),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all four: different answers from the same logits, fewer rows, a model without its last layer,
    # and means over earlier evaluations.
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_answers_by_the_least_logit", AVX2),
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_of_every_second_row"),
    inside("packed", "evaluation", "evaluation", "evaluation.evaluation_leaves_by_an_early_exit", NOISE),
    inside("eager", "evaluation", "evaluation", "evaluation.evaluation_never_resets_its_metrics", AVX2),
)
