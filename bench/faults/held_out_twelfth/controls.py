"""Harmless differences at production settings: the right answer is `pass`."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_twelfth.entries import AVX2, NOISE, files, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a different machine alone, the first with variables that change no bit.
    Entry("bf16-for-avx2", "control", "", workload="bf16", environment={**AVX2, **NOISE}),
    Entry("eager-by-onednn-for-avx2", "control", "", workload="eager", environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    # Two processes share each batch: the reference's rows, order, masks of the curve and formulas.
    Entry("fp32-of-two-processes", "control", "", workload="fp32", setting="two processes"),
    # More threads, which the record states.
    inside("compiled", "control", "", "controls.pools_of_two_threads", NOISE),
    # The same formulas in the same precision, of releases that the record states.
    inside("fp16", "control", "", "controls.loss_of_a_torch_release_by_log_sum_exp"),
    inside("fp32", "control", "", "controls.products_of_a_torch_release_in_halves", AVX2),
    # No bit of a training changes: a watcher that reads, the same ids of a different file.
    inside("packed", "control", "", "controls.gradients_copied_as_they_arrive", NOISE),
    files("fp16", "", "vocabulary_written_in_a_different_order"),
)
