"""Harmless differences at production settings: the right answer is `pass`."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_eleventh.entries import AVX2, NOISE, PLAIN, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a different machine alone, the first with variables that change no bit.
    Entry("eager-without-vector-isa", "control", "", workload="eager", environment={**PLAIN, **NOISE}),
    Entry(
        "fp32-by-mkl-for-avx2", "control", "", workload="fp32", environment={"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    ),
    # The compiler makes the same code anew.
    Entry(
        "compiled-without-a-cache", "control", "", workload="compiled",
        environment={"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", **NOISE},
    ),
    # Two processes share each batch: the reference's rows, order, masks of the curve and formulas.
    Entry("bf16-of-two-processes", "control", "", workload="bf16", setting="two processes"),
    # More threads on a different machine, both of which the record states.
    inside("fp16", "control", "", "controls.four_threads", AVX2),
    # The same formulas in the same precision, of releases that the record states.
    inside("fp32", "control", "", "controls.gelu_of_a_torch_release_by_erfc"),
    inside("bf16", "control", "", "controls.linear_of_a_torch_release_in_wider_sums"),
    # No bit of a training changes: a profiler that watches.
    inside("packed", "control", "", "controls.steps_in_ranges_of_a_profiler", NOISE),
)  # fmt: skip
