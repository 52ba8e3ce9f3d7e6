"""Faults of optimizer kernels, clipping, loss scaling and rates, of what `speed` reads, and of a second process."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_ninth.entries import AVX2, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for the first three.
    inside("bf16", "updates", "optimizer", "updates.fused_correction_without_its_root", AVX2),
    inside("eager", "updates", "optimizer", "updates.foreach_trust_ratio_of_lamb"),
    inside("fp16", "updates", "optimizer", "updates.foreach_moments_shared_by_shape"),
    # The loss agrees; all gradients have a constant factor.
    inside("bf16", "updates", "gradient", "updates.speed_gradients_over_a_loss_scale"),
    # Gradients agree before clipping, and do not after.
    inside("fp32", "updates", "gradient", "updates.clipped_by_group", AVX2),
    # A different learning rate.
    inside("bf16", "updates", "schedule", "updates.speed_decays_within_the_measured_steps"),
)

INPUTS: tuple[Entry, ...] = (
    # The same rows in a different order.
    inside("fp32", "data", "data.order", "inputs.speed_groups_rows_by_length", AVX2),
    # The same rows with ids and masks at different places.
    inside("bf16", "data", "tokenization", "inputs.speed_pads_on_the_left"),
    # The same texts with the labels of different rows.
    inside("eager", "data", "data.labels", "inputs.speed_reverses_labels_of_odd_steps", AVX2),
    # Batches agree; the generator does not, and dropout drops different elements.
    inside("fp16", "data", "rng", "inputs.speed_seeds_its_generator_again"),
    # Training starts from different values.
    inside("bf16", "data", "weights.init", "inputs.speed_position_table_off_by_two", AVX2),
    # Files with different texts.
    files("bf16", "data.content", "last_words_doubled", AVX2),
    # The same texts become different ids.
    files("fp16", "tokenization", "numbers_in_single_digits"),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "gradient", "second_process_keeps_its_own_gradients"),
    second_process("bf16", "schedule", "second_process_warms_up_by_rows"),
    second_process("bf16", "tokenization", "second_process_reads_shorter_rows"),
    second_process("fp32", "weights.init", "second_process_starts_from_its_own_head"),
)
