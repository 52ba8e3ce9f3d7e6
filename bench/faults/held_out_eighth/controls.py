"""Harmless differences at production settings: the right answer is `pass`."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eighth.entries import AVX2, NOISE, PLAIN, files, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a different machine alone, with variables that change no bit.
    Entry("fp16-for-avx2", "control", "", workload="fp16", environment={**AVX2, **NOISE}),
    Entry("fp32-without-vector-isa", "control", "", workload="fp32", environment=PLAIN),
    Entry("bf16-by-onednn-for-avx2", "control", "", workload="bf16", environment={"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    # Kernels of a release on a machine whose recorded instruction set explains their rounding.
    inside("eager", "control", "", "controls.updates_of_a_release_one_by_one", AVX2),
    inside("bf16", "control", "", "controls.norm_of_a_release_by_its_formula", AVX2),
    # No bit of a training changes: loggers that read, the same tokens of a different file.
    inside("fp16", "control", "", "controls.norms_of_gradients_logged", NOISE),
    inside("packed", "control", "", "controls.weights_copied_after_each_step"),
    files("fp32", "", "tokenizer_with_a_different_decoder"),
)
