"""Faults of optimizer kernels, loss scaling, accumulation, clipping and rates, and of what `speed` reads."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eighth.entries import AVX2, NOISE, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for the first eight.
    inside("fp32", "updates", "optimizer", "updates.fused_eps_of_an_older_default", AVX2),
    inside("bf16", "updates", "optimizer", "updates.fused_second_beta_of_language_models"),
    inside("fp32", "updates", "optimizer", "updates.fused_decay_as_a_penalty", NOISE),
    inside("bf16", "updates", "optimizer", "updates.fused_moments_not_corrected", AVX2),
    inside("packed", "updates", "optimizer", "updates.fused_vectors_not_updated"),
    inside("fp16", "updates", "optimizer", "updates.foreach_counts_every_tensor"),
    inside("eager", "updates", "optimizer", "updates.foreach_without_decay", AVX2),
    inside("fp16", "updates", "optimizer", "updates.foreach_forgets_new_momentum", NOISE),
    # Gradients agree before clipping, and do not after: so for the next two.
    inside("fp16", "updates", "gradient", "updates.clipped_before_unscaling", AVX2),
    inside("bf16", "updates", "gradient", "updates.clipped_to_the_default_norm"),
    # The loss agrees; the gradient contains that of the step before.
    inside("fp32", "updates", "gradient", "updates.gradients_cleared_every_second_step"),
    # The loss agrees; micro-batches have different weights.
    inside("eager", "updates", "gradient", "updates.first_micro_batch_weighs_thrice", NOISE),
    # Logits agree, the loss is half of its definition.
    inside("fp16", "updates", "loss", "updates.loss_divided_by_items_of_the_batch", AVX2),
    # A different learning rate: so for the last two.
    inside("fp32", "updates", "schedule", "updates.speed_schedule_steps_per_micro_batch"),
    inside("bf16", "updates", "schedule", "updates.speed_rate_scaled_by_the_batch", AVX2),
)

INPUTS: tuple[Entry, ...] = (
    # Rows not read, others earlier.
    inside("eager", "data", "data.order", "inputs.speed_skips_the_first_batch", AVX2),
    # A row read twice, another one not at all.
    inside("fp16", "data", "data.order", "inputs.speed_last_row_repeats_the_first"),
    # The same texts with the labels of different rows.
    inside("fp32", "data", "data.labels", "inputs.speed_labels_of_the_batch_before"),
    # The same rows with a different mask, and with different segments.
    inside("bf16", "data", "tokenization", "inputs.speed_mask_counts_padding", AVX2),
    inside("eager", "data", "tokenization", "inputs.speed_segments_of_a_pair"),
    # Dropout drops different elements.
    inside("fp16", "data", "rng", "inputs.speed_drops_twice_as_much"),
    # Training starts from different values.
    inside("fp16", "data", "weights.init", "inputs.speed_loads_keys_as_queries"),
    # Files with different texts, and with different labels of the same texts.
    files("eager", "data.content", "first_words_dropped", AVX2),
    files("bf16", "data.labels", "labels_voted_again"),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "data.order", "second_process_reads_the_first_half"),
    second_process("bf16", "rng", "second_process_has_masks_of_the_first"),
    second_process("bf16", "precision", "second_process_computes_in_fp32"),
    second_process("bf16", "optimizer", "second_process_loses_updates"),
)
