"""Faults of the learning curve, most from a late step on, and of its evaluations: probe and `speed` agree in most."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eighth.entries import AVX2, NOISE, inside

__all__ = ["EVALUATION", "LEARNING"]

LEARNING: tuple[Entry, ...] = (
    # The same rows in a different order, and a row not read.
    inside("fp32", "learn", "data.order", "learning.learn_second_epoch_reversed", AVX2),
    inside("bf16", "learn", "data.order", "learning.learn_row_skipped_at_the_checkpoint", AVX2),
    # The same rows with labels of different rows.
    inside("eager", "learn", "data.labels", "learning.learn_labels_one_row_late"),
    # The same rows with different segments.
    inside("fp16", "learn", "tokenization", "learning.learn_second_half_marked"),
    # Different hidden tokens, and dropout that drops different elements.
    inside("packed", "learn", "rng", "learning.learn_hides_the_same_tokens"),
    inside("bf16", "learn", "rng", "learning.learn_masks_of_the_step_before", AVX2),
    # A module computes a different result: so for the next three.
    inside("eager", "learn", "operator", "learning.learn_pooler_reads_the_second_token"),
    inside("fp32", "learn", "operator", "learning.learn_quick_gelu", AVX2),
    inside("bf16", "learn", "operator", "learning.learn_layer_passes_through"),
    # fp16 where the task says fp32.
    inside("fp32", "learn", "precision", "learning.learn_norms_in_half"),
    # fp32 where the task says bf16.
    inside("eager", "learn", "precision", "learning.learn_without_autocast", AVX2),
    # Logits agree, the loss does not.
    inside("bf16", "learn", "loss", "learning.learn_logits_over_a_temperature"),
    # Gradients agree before clipping, and do not after.
    inside("fp32", "learn", "gradient", "learning.learn_clipping_lost", NOISE),
    # The loss agrees, parameters get no gradient.
    inside("fp16", "learn", "gradient", "learning.learn_tables_frozen", AVX2),
    # The loss agrees, the gradient contains that of the step before.
    inside("bf16", "learn", "gradient", "learning.learn_gradients_of_two_steps"),
    # Gradients and rate agree, the update differs: so for the next three.
    inside("fp32", "learn", "optimizer", "learning.learn_counts_start_again", AVX2),
    inside("packed", "learn", "optimizer", "learning.learn_decay_ends"),
    inside("eager", "learn", "optimizer", "learning.learn_tables_updated_every_second_step", NOISE),
    # A checkpoint changed weights or moments.
    inside("bf16", "learn", "optimizer", "learning.learn_weights_saved_in_bf16"),
    inside("fp16", "learn", "optimizer", "learning.learn_second_moments_lost", AVX2),
    # A different learning rate, of one group alone in the second: so for the next three.
    inside("fp16", "learn", "schedule", "learning.learn_rate_returns_to_its_peak"),
    inside("fp32", "learn", "schedule", "learning.learn_undecayed_group_at_half_the_rate"),
    inside("fp32", "learn", "schedule", "learning.learn_schedule_a_step_behind"),
    # The curve starts from different values.
    inside("bf16", "learn", "weights.init", "learning.learn_head_not_in_the_checkpoint"),
)

EVALUATION: tuple[Entry, ...] = (
    # Training agrees in all but the third: shorter rows, labels of different rows.
    inside("bf16", "evaluation", "evaluation", "evaluation.evaluation_trims_to_its_shortest_text", AVX2),
    inside("eager", "evaluation", "evaluation", "evaluation.evaluation_reads_labels_of_the_first_batch", AVX2),
    # An evaluation changes the weights.
    inside("fp32", "evaluation", "evaluation", "evaluation.evaluation_leaves_rounded_weights"),
    # A different format, a different mean, a different pooler in evaluation mode alone.
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_in_bf16_where_fp16_is_asked"),
    inside("packed", "evaluation", "evaluation", "evaluation.evaluation_averages_its_batches", NOISE),
    inside("fp16", "evaluation", "evaluation", "evaluation.evaluation_pools_the_mean", NOISE),
)
