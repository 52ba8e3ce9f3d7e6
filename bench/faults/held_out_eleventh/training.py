"""Faults of optimizer kernels, clipping, loss scaling and rates, of what `speed` reads, and of a second process."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eleventh.entries import AVX2, NOISE, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for the first four. AdaMax's first update is AdamW's
    # own but for eps, and moments of fewer levels act from the second update on.
    inside("bf16", "updates", "optimizer", "updates.fused_second_moment_is_a_maximum", AVX2),
    inside("packed", "updates", "optimizer", "updates.fused_updates_the_tied_table_twice"),
    inside("eager", "updates", "optimizer", "updates.foreach_update_is_rectified"),
    inside("fp16", "updates", "optimizer", "updates.foreach_is_an_adam_of_eight_bits", AVX2),
    # The loss agrees, and so do the scaled gradients of the backward pass; what clipping and optimizer get does not.
    inside("fp16", "updates", "gradient", "updates.scaled_gradients_are_limited"),
    # Gradients agree before clipping, and do not after.
    inside("bf16", "updates", "gradient", "updates.clipped_by_the_norm_of_the_step_before", AVX2),
    # A different learning rate.
    inside("fp32", "updates", "schedule", "updates.speed_rate_falls_by_the_inverse_root", NOISE),
)

INPUTS: tuple[Entry, ...] = (
    # The same rows in a different order.
    inside("eager", "data", "data.order", "inputs.speed_batches_of_workers_exchanged", AVX2),
    # The same texts with different labels.
    inside("fp16", "data", "data.labels", "inputs.speed_labels_zero_from_step_six", NOISE),
    # The same rows with different ids.
    inside("bf16", "data", "tokenization", "inputs.speed_rare_tokens_unknown"),
    # Batches agree; the generator does not, and dropout drops different elements.
    inside("fp32", "data", "rng", "inputs.speed_micro_batches_share_masks"),
    # Training starts from different values.
    inside("bf16", "data", "weights.init", "inputs.speed_rescales_its_residual_projections", AVX2),
    # Files with different texts.
    files("fp16", "data.content", "articles_filtered"),
    # The same texts become different ids.
    files("fp32", "tokenization", "punctuation_not_separated", AVX2),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "operator", "second_process_has_a_larger_eps"),
    second_process("bf16", "loss", "second_process_smooths_its_labels"),
    second_process("fp32", "precision", "second_process_multiplies_in_bf16"),
    second_process("bf16", "gradient", "second_process_loses_its_first_micro_batch"),
)
