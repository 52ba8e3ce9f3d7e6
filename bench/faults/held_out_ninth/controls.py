"""Harmless differences at production settings: the right answer is `pass`."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_ninth.entries import AVX2, NOISE, PLAIN, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a different machine alone, with variables that change no bit.
    Entry("eager-for-avx2", "control", "", workload="eager", environment={**AVX2, **NOISE}),
    Entry("fp16-without-vector-isa", "control", "", workload="fp16", environment=PLAIN),
    # Variables that change no bit.
    Entry("compiled-beside-variables", "control", "", workload="compiled", environment=NOISE),
    # Kernels of a release on a machine whose recorded instruction set explains their rounding.
    inside("fp32", "control", "", "controls.gelu_of_a_release_in_fp64", AVX2),
    inside("bf16", "control", "", "controls.bias_of_a_release_added_apart", AVX2),
    # No bit of a training changes: a restart that restores all, a logger that reads, copies.
    inside("fp32", "control", "", "controls.curve_interrupted_and_resumed"),
    inside("bf16", "control", "", "controls.losses_read_at_each_step", NOISE),
    inside("packed", "control", "", "controls.micro_batches_copied"),
)
