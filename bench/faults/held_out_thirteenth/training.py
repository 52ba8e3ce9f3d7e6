"""Faults of optimizer kernels, exchange, clipping and rates, of what `speed` reads, and of a second process."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_thirteenth.entries import AVX2, NOISE, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for the first four. The first and the second act
    # from the second update on.
    inside("bf16", "updates", "optimizer", "updates.fused_divides_by_the_second_moment_before", AVX2),
    inside("packed", "updates", "optimizer", "updates.fused_takes_the_sign_of_the_gradient", NOISE),
    inside("eager", "updates", "optimizer", "updates.foreach_adds_a_slow_moment", AVX2),
    inside("fp16", "updates", "optimizer", "updates.foreach_second_moment_of_absolute_values"),
    # Gradients agree before clipping, and do not after.
    inside("fp32", "updates", "gradient", "updates.clipped_by_the_sum_of_absolute_values", NOISE),
    # The loss agrees, gradients do not.
    inside("bf16", "updates", "gradient", "updates.speed_exchanges_gradients_of_rank_one", AVX2),
    # A different learning rate.
    inside("fp32", "updates", "schedule", "updates.speed_warms_up_by_a_share", AVX2),
)

INPUTS: tuple[Entry, ...] = (
    # The same rows in different batches.
    inside("eager", "data", "data.order", "inputs.speed_deals_two_batches_in_turn", AVX2),
    # The same texts with different labels.
    inside("fp16", "data", "data.labels", "inputs.speed_fills_labels_with_the_first", NOISE),
    # The same rows with different ids and masks.
    inside("bf16", "data", "tokenization", "inputs.speed_cuts_rows_at_the_shortest_text"),
    # Batches agree; the generator does not, and dropout drops different elements.
    inside("fp32", "data", "rng", "inputs.speed_tries_a_forward_pass_first"),
    # Training starts from different values.
    inside("bf16", "data", "weights.init", "inputs.speed_loads_a_shard_twice", AVX2),
    # Files with different texts.
    files("fp16", "data.content", "texts_in_title_case", AVX2),
    # The same texts become different ids.
    files("fp32", "tokenization", "long_pieces_left_out", AVX2),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "operator", "second_process_halves_its_scores"),
    second_process("bf16", "rng", "second_process_drops_nothing"),
    second_process("bf16", "optimizer", "second_process_has_a_smaller_first_beta"),
    second_process("fp32", "data.labels", "second_process_reads_labels_of_the_first"),
)
