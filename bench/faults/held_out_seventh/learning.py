"""Faults of the learning curve, most from a late step on, and of its evaluations: probe and `speed` agree."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_seventh.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING"]

LEARNING: tuple[Entry, ...] = (
    # A different scale of attention.
    inside("bf16", "learn", "operator", "learning.learn_scores_smaller"),
    # A different eps of LayerNorm.
    inside("fp32", "learn", "operator", "learning.learn_norm_eps_of_a_default", AVX2),
    # The same rows with a different label.
    inside("bf16", "learn", "data.labels", "learning.learn_last_label_reversed", AVX2),
    # The same rows, truncated shorter.
    inside("fp32", "learn", "tokenization", "learning.learn_tokens_cut_at_sixteen"),
    # Rows repeated, others not read.
    inside("fp16", "learn", "data.order", "learning.learn_batches_read_twice", AVX2),
    # Dropout drops different elements.
    inside("bf16", "learn", "rng", "learning.learn_masks_of_the_first_rows", AVX2),
    # Logits agree, the loss does not.
    inside("fp16", "learn", "loss", "learning.learn_loss_smoothed_late"),
    # The loss agrees, the gradient has a factor for some rows.
    inside("fp32", "learn", "gradient", "learning.learn_second_micro_batch_doubled"),
    # The loss agrees, parameters get no gradient.
    inside("eager", "learn", "gradient", "learning.learn_first_layer_without_gradient", AVX2),
    # Gradients and rate agree, the update differs: so for the next four.
    inside("fp32", "learn", "optimizer", "learning.learn_second_beta_lowered", AVX2),
    inside("bf16", "learn", "optimizer", "learning.learn_moments_saved_in_bf16"),
    inside("fp32", "learn", "optimizer", "learning.learn_momentum_lost_at_the_evaluation", NOISE),
    inside("fp16", "learn", "optimizer", "learning.learn_overflow_where_there_is_none"),
    # A different learning rate.
    inside("packed", "learn", "schedule", "learning.learn_rate_held"),
    # bf16 where the task says fp32.
    inside("fp32", "learn", "precision", "learning.learn_products_in_bf16"),
    # The curve starts from different values.
    inside("eager", "learn", "weights.init", "learning.learn_loads_a_layer_twice"),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all four: rows counted twice, labels of different rows, fewer bits, more bits.
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_fills_its_last_batch", AVX2),
    inside("bf16", "evaluation", "evaluation", "evaluation.evaluation_answers_in_order_of_length"),
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_of_weights_in_bf16", AVX2),
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_without_autocast"),
)
