"""Faults of optimizer kernels, loss scaling, accumulation, clipping, and of what `speed` reads."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_seventh.entries import AVX2, NOISE, files, inside, second_process

__all__ = ["INPUTS", "RANKS", "UPDATES"]

UPDATES: tuple[Entry, ...] = (
    # Gradients and rate agree, weights after the update do not: so for all of the next eight.
    inside("bf16", "updates", "optimizer", "updates.fused_decay_twice"),
    inside("fp32", "updates", "optimizer", "updates.fused_later_chunks_not_updated", AVX2),
    inside("bf16", "updates", "optimizer", "updates.fused_correction_one_step_ahead", AVX2),
    inside("packed", "updates", "optimizer", "updates.fused_momentum_of_undecayed_lost"),
    inside("fp32", "updates", "optimizer", "updates.fused_decay_for_every_group", NOISE),
    inside("fp16", "updates", "optimizer", "updates.foreach_skips_the_last_tensor", AVX2),
    inside("eager", "updates", "optimizer", "updates.foreach_eps_below_the_format"),
    inside("eager", "updates", "optimizer", "updates.foreach_beta_in_bf16", AVX2),
    # The loss agrees; gradients keep a factor.
    inside("fp16", "updates", "gradient", "updates.scaler_leaves_vectors_scaled"),
    # Gradients agree; an update is skipped.
    inside("fp16", "updates", "optimizer", "updates.scaler_skips_every_third_update", NOISE),
    # The loss agrees; a micro-batch's gradient has a factor.
    inside("fp16", "updates", "gradient", "updates.scaler_halves_the_second_loss"),
    # The loss agrees; the gradient misses a micro-batch.
    inside("eager", "updates", "gradient", "updates.first_micro_batch_cleared", AVX2),
    # The loss agrees; the gradient is a mean of means.
    inside("packed", "updates", "gradient", "updates.micro_batches_count_alike", AVX2),
    # Gradients agree before clipping, and do not after: clipping by a different norm.
    inside("bf16", "updates", "gradient", "updates.clipped_by_the_norm_of_matrices"),
)

INPUTS: tuple[Entry, ...] = (
    # The same rows, truncated shorter.
    inside("fp32", "data", "tokenization", "inputs.longest_row_cut_short"),
    # The same texts with the labels of different rows.
    inside("bf16", "data", "data.labels", "inputs.speed_labels_of_the_neighbour", AVX2),
    # The same rows in a different order.
    inside("fp16", "data", "data.order", "inputs.speed_rows_dealt_out"),
    # The same rows become different ids.
    inside("eager", "data", "tokenization", "inputs.speed_ids_in_eight_bits", NOISE),
    # Files with a different label, different texts and a different vocabulary.
    files("bf16", "data.labels", "one_label_of_the_evaluation"),
    files("fp16", "data.content", "texts_capped_by_an_export", AVX2),
    files("fp32", "tokenization", "part_of_the_vocabulary_reversed", AVX2),
)

RANKS: tuple[Entry, ...] = (
    # The code is that of the fault, whichever process has it.
    second_process("bf16", "data.labels", "second_process_reads_labels_late"),
    second_process("bf16", "operator", "second_process_drops_a_remainder"),
    second_process("bf16", "loss", "second_process_learns_with_a_larger_loss"),
    second_process("bf16", "gradient", "second_process_halves_its_gradients"),
)
