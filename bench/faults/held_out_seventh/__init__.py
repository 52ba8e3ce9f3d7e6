"""Seventh held-out set: faults at production settings, by a writer who had not read the judge or its results.

Sources: issues of torch, transformers, flash-attention, trl and bitsandbytes (masks and scales of fused attention in
bf16, packed texts that read each other, positions of packed rows, fused AdamW under loss scaling, decay applied twice,
compiled LayerNorm and lost gradients of split sums), and mistakes of loaders, checkpoints and evaluations. Most faults
are in kernels that only mixed precision, fused or unstrict settings choose, so that the strict probe agrees. Others
begin late in the learning curve. Each has one cause, the first place where the training is not the reference's.
"""

from __future__ import annotations

from bench.faults.held_out_seventh.controls import CONTROLS
from bench.faults.held_out_seventh.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_seventh.learning import EVALUATION, LEARNING
from bench.faults.held_out_seventh.training import INPUTS, RANKS, UPDATES

__all__ = ["SEVENTH", "SEVENTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *EVALUATION, *RANKS)
SEVENTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
SEVENTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
