"""Faults of the learning curve, of a curve that is resumed, and of its evaluations: probe and `speed` agree."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_twelfth.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING", "RESUMES"]

LEARNING: tuple[Entry, ...] = (
    # The same rows with labels of different rows, from step 16 on.
    inside("bf16", "learn", "data.labels", "learning.learn_labels_of_a_stale_cache", AVX2),
    # The same rows in a different order, from the end of the first epoch on.
    inside("fp32", "learn", "data.order", "learning.learn_leaves_out_the_last_batch_of_its_epoch", AVX2),
    # The same rows with different ids.
    inside("eager", "learn", "tokenization", "learning.learn_words_dropped_to_unknown", AVX2),
    # Dropout drops different elements of the same input.
    inside("fp16", "learn", "rng", "learning.learn_masks_of_a_layer_never_change", AVX2),
    # Attention's output is the first that differs.
    inside("bf16", "learn", "operator", "learning.learn_attention_reads_keys_one_token_late", AVX2),
    # bf16 where the task says fp32.
    inside("fp32", "learn", "precision", "learning.learn_queries_and_keys_in_bf16", AVX2),
    # Logits agree, the loss does not.
    inside("bf16", "learn", "loss", "learning.learn_loss_weighs_its_classes", NOISE),
    # The loss agrees, gradients of and before the queries do not.
    inside("fp32", "learn", "gradient", "learning.learn_gradients_of_queries_doubled"),
    # Gradients and rate agree, weights after the update do not.
    inside("packed", "learn", "optimizer", "learning.learn_eps_of_a_thousandth", NOISE),
    # A different learning rate.
    inside("bf16", "learn", "schedule", "learning.learn_rate_in_triangles", AVX2),
    # The curve starts from different values.
    inside("eager", "learn", "weights.init", "learning.learn_starts_with_its_layers_averaged", AVX2),
    # An unchanged rerun has different outputs.
    inside("eager", "learn", "nondeterminism", "learning.learn_keys_not_always_written"),
)

RESUMES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not.
    inside("fp32", "resume", "optimizer", "learning.resume_sums_moments_of_two_shards", AVX2),
    # A different learning rate.
    inside("eager", "resume", "schedule", "learning.resume_warms_up_again", NOISE),
    # The same rows in a different order.
    inside("fp16", "resume", "data.order", "learning.resume_reads_the_rest_of_its_epoch_in_reverse"),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all four: different answers from the same logits, a different loss of the same logits, a
    # different count of right answers, and rows that are read twice.
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_needs_a_margin", AVX2),
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_smooths_its_labels"),
    inside("packed", "evaluation", "evaluation", "evaluation.evaluation_accepts_five_answers", NOISE),
    inside("eager", "evaluation", "evaluation", "evaluation.evaluation_reads_its_first_batch_twice", AVX2),
)
