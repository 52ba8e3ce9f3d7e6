"""Harmless differences at production settings: the right answer is `pass`."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_tenth.entries import NOISE, PLAIN, files, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a different machine alone, and a compiler with one thread, with variables that change no bit.
    Entry("bf16-without-vector-isa", "control", "", workload="bf16", environment={**PLAIN, **NOISE}),
    Entry(
        "compiled-by-one-thread", "control", "", workload="compiled",
        environment={"TORCHINDUCTOR_COMPILE_THREADS": "1", **NOISE},
    ),
    # More threads, which the record states.
    inside("fp16", "control", "", "controls.three_threads"),
    # The same formulas in the same precision, of releases that the record states.
    inside("fp32", "control", "", "controls.norm_of_a_torch_release_in_two_passes"),
    inside("eager", "control", "", "controls.attention_of_a_transformers_release"),
    # No bit of a training changes: casts that are repeated, views of a buffer, a truncation that the task's replaces.
    inside("bf16", "control", "", "controls.casts_not_cached"),
    inside("packed", "control", "", "controls.parameters_in_a_flat_buffer", NOISE),
    files("fp16", "", "tokenizer_stores_a_truncation"),
)  # fmt: skip
