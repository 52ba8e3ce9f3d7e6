"""Harmless differences at production settings: the right answer is `pass`."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_seventh.entries import NOISE, PLAIN, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a release, whose rounding the digests of native operations show.
    inside("bf16", "control", "", "controls.sdpa_of_a_release_by_its_formula"),
    inside("fp32", "control", "", "controls.fused_adamw_of_a_release_in_fp64"),
    # No bit of a training changes: loaders, a private generator, hooks that read, garbage collection.
    inside("fp32", "control", "", "controls.batches_of_two_workers"),
    inside("fp16", "control", "", "controls.draws_of_a_private_generator", NOISE),
    inside("eager", "control", "", "controls.outputs_watched_by_a_monitor"),
    inside("bf16", "control", "", "controls.garbage_collected_each_step", NOISE),
    # Other kernels for packed rows, with variables that change no bit.
    Entry(
        "packed-without-vector-isa", "control", "", workload="packed", environment={**PLAIN, **NOISE},
    ),
)  # fmt: skip
