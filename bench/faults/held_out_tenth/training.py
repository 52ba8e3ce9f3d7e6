"""Faults of optimizer kernels, clipping, loss scaling and rates, of what `speed` reads, and of a second process."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_tenth.entries import AVX2, NOISE, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for the first four. The first update of the sign is
    # AdamW's own but for eps, the count wraps at the ninth update, and momentum decays from the second one on.
    inside("bf16", "updates", "optimizer", "updates.fused_update_is_a_sign", AVX2),
    inside("fp32", "updates", "optimizer", "updates.fused_count_wraps_at_eight"),
    inside("eager", "updates", "optimizer", "updates.foreach_one_second_moment_a_tensor", AVX2),
    inside("fp16", "updates", "optimizer", "updates.foreach_momentum_never_decays"),
    # The loss agrees; the first micro-batch's gradient has a factor.
    inside("fp16", "updates", "gradient", "updates.scaler_unscales_after_each_micro_batch", AVX2),
    # Gradients agree before clipping, and do not after.
    inside("bf16", "updates", "gradient", "updates.clipped_by_the_largest_entry"),
    # A different learning rate.
    inside("fp32", "updates", "schedule", "updates.speed_rate_without_its_warm_up", NOISE),
)

INPUTS: tuple[Entry, ...] = (
    # The same rows in a different order, from step 10 on.
    inside("eager", "data", "data.order", "inputs.speed_shuffles_its_second_cycle", AVX2),
    # The same texts with the labels of different rows.
    inside("fp16", "data", "data.labels", "inputs.speed_labels_sorted_apart"),
    # The same rows with different ids and masks.
    inside("bf16", "data", "tokenization", "inputs.speed_first_token_twice"),
    # Batches agree; the generator does not, and dropout drops different elements.
    inside("fp32", "data", "rng", "inputs.speed_loader_draws_from_the_generator", NOISE),
    # Training starts from different values.
    inside("bf16", "data", "weights.init", "inputs.speed_splits_a_fused_projection_by_heads"),
    # Files with different texts.
    files("fp16", "data.content", "digits_replaced_by_a_scrubber", AVX2),
    # The same texts become different ids.
    files("fp32", "tokenization", "chinese_characters_not_separated"),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "optimizer", "second_process_decays_ten_times"),
    second_process("bf16", "operator", "second_process_attends_causally"),
    second_process("bf16", "gradient", "second_process_clips_to_twice_the_norm"),
    second_process("fp32", "data.order", "second_process_is_a_batch_behind"),
)
