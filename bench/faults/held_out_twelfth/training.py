"""Faults of optimizer kernels, clipping, loss scaling and rates, of what `speed` reads, and of a second process."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_twelfth.entries import AVX2, NOISE, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for the first four. The second beta that grows acts
    # from the second update on.
    inside("bf16", "updates", "optimizer", "updates.fused_second_moment_of_deviations", AVX2),
    inside("packed", "updates", "optimizer", "updates.fused_update_of_matrices_is_orthogonal"),
    inside("eager", "updates", "optimizer", "updates.foreach_second_beta_grows_with_the_count"),
    inside("fp16", "updates", "optimizer", "updates.foreach_pairs_values_with_the_next_gradient", AVX2),
    # Gradients agree before clipping, and do not after.
    inside("bf16", "updates", "gradient", "updates.clipped_by_the_sum_of_norms", NOISE),
    # A different learning rate.
    inside("fp32", "updates", "schedule", "updates.speed_rate_restarts_every_ten_steps", AVX2),
)

INPUTS: tuple[Entry, ...] = (
    # The same rows in a different order.
    inside("eager", "data", "data.order", "inputs.speed_reads_its_rows_in_reverse", AVX2),
    # The same texts with different labels.
    inside("fp16", "data", "data.labels", "inputs.speed_labels_follow_the_majority", NOISE),
    # The same rows with different ids.
    inside("bf16", "data", "tokenization", "inputs.speed_separators_are_padding"),
    # Batches agree; the generator does not, and dropout drops different elements.
    inside("fp32", "data", "rng", "inputs.speed_seeds_with_the_next_number"),
    # Training starts from different values.
    inside("bf16", "data", "weights.init", "inputs.speed_stretches_its_table_of_positions", AVX2),
    # Files with different texts.
    files("fp16", "data.content", "adjacent_words_exchanged", AVX2),
    # The same texts become different ids.
    files("fp32", "tokenization", "pieces_without_their_prefix", AVX2),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "operator", "second_process_activates_by_relu"),
    second_process("bf16", "data.labels", "second_process_reverses_its_labels"),
    second_process("bf16", "schedule", "second_process_has_half_the_rate"),
    second_process("fp32", "precision", "second_process_normalises_in_bf16"),
)
