"""Controls of the thirteenth set: harmless differences at production settings."""

from __future__ import annotations

from bench.faults.catalogue import Entry
from bench.faults.held_out_thirteenth.entries import AVX2, NOISE, files, inside

__all__ = ["CONTROLS"]

CONTROLS: tuple[Entry, ...] = (
    # Kernels of a different machine alone, beside variables that change no bit.
    Entry("fp32-for-avx2", "control", "", workload="fp32", environment={**AVX2, **NOISE}),
    # The same code in smaller chunks.
    Entry(
        "compiled-in-small-chunks", "control", "", workload="compiled",
        environment={"TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE": "64", **NOISE},
    ),
    # Two processes share each batch: the reference's rows, order, masks of the curve and formulas.
    Entry("eager-of-two-processes", "control", "", workload="eager", setting="two processes"),
    # The same formulas in the same precision, of releases that the record states.
    inside("eager", "control", "", "controls.softmax_of_a_torch_release_in_base_two"),
    inside("fp32", "control", "", "controls.tanh_of_a_torch_release_by_exponentials", AVX2),
    inside("bf16", "control", "", "controls.squares_of_a_torch_release_by_halves", NOISE),
    # No bit of a training changes: the same batches in different memory, the same tokens of a different file.
    inside("packed", "control", "", "controls.batches_in_shared_memory", NOISE),
    files("fp16", "", "longer_words_allowed"),
)  # fmt: skip
