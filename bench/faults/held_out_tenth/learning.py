"""Faults of the learning curve, of a curve that is resumed, and of its evaluations: probe and `speed` agree."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_tenth.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING", "RESUMES"]

LEARNING: tuple[Entry, ...] = (
    # The same rows with a different label.
    inside("bf16", "learn", "data.labels", "learning.learn_first_labels_are_zero", AVX2),
    # The same rows in a different order, from the second epoch on.
    inside("fp16", "learn", "data.order", "learning.learn_second_epoch_in_the_order_of_the_first", AVX2),
    # The same rows with different ids and masks.
    inside("fp32", "learn", "tokenization", "learning.learn_separators_behind_the_padding"),
    # Dropout drops different elements of the same input.
    inside("bf16", "learn", "rng", "learning.learn_masks_of_a_neighbouring_seed", AVX2),
    # The pooler's activation is the first that differs.
    inside("fp32", "learn", "operator", "learning.learn_pooler_by_a_hard_tanh", AVX2),
    # bf16 where the task says fp32.
    inside("fp32", "learn", "precision", "learning.learn_layers_exchange_bf16", AVX2),
    # Logits agree, the loss does not.
    inside("eager", "learn", "loss", "learning.learn_loss_is_a_sum", AVX2),
    # The loss agrees, the gradient of some parameters has a factor.
    inside("bf16", "learn", "gradient", "learning.learn_table_gradients_shrunk", NOISE),
    # Gradients and rate agree; a parameter is not updated.
    inside("packed", "learn", "optimizer", "learning.learn_parameter_in_no_group", NOISE),
    # A different learning rate.
    inside("bf16", "learn", "schedule", "learning.learn_rate_ends_at_a_tenth", AVX2),
    # The curve starts from different values.
    inside("eager", "learn", "weights.init", "learning.learn_starts_with_segments_exchanged", AVX2),
    # An unchanged rerun has different weights.
    inside("eager", "learn", "nondeterminism", "learning.learn_tensors_lose_their_update"),
)

RESUMES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not.
    inside("bf16", "resume", "optimizer", "learning.resume_decays_every_parameter", AVX2),
    # A different learning rate.
    inside("eager", "resume", "schedule", "learning.resume_plans_its_schedule_for_the_rest"),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all four: fewer rows, rows of the training data, a different count of right answers, and hidden
    # tokens that are shown.
    inside("bf16", "evaluation", "evaluation", "evaluation.evaluation_drops_its_last_batch", AVX2),
    inside("eager", "evaluation", "evaluation", "evaluation.evaluation_of_training_rows"),
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_counts_positives"),
    inside("packed", "evaluation", "evaluation", "evaluation.evaluation_shows_the_hidden_tokens", NOISE),
)
