"""Tenth held-out set: faults at production settings, by a fourth writer who had not read the judge or its results.

Drawn from what goes wrong with torch, transformers, flash-attention, accelerate and their like: linear biases of
distance that were not asked for, heads and tokens in the places of a different library, sparse and quantised attention,
dropout masks that the backward pass draws anew, weights of LayerNorm that count from zero, tiles that are stored twice,
gradients of a table one row off, losses adjusted by frequencies, places and random numbers that a compiler gets wrong,
a gradient that is unscaled with each micro-batch, counts that wrap, parameters in no group, epochs that are never set,
padding before special tokens, a fused projection that is split in a different order, resumes that make groups or
schedules anew, evaluations without their last batch. Each fault has one cause: the first place where the training is
not the reference's.
"""

from __future__ import annotations

from bench.faults.held_out_tenth.controls import CONTROLS
from bench.faults.held_out_tenth.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_tenth.learning import EVALUATION, LEARNING, RESUMES
from bench.faults.held_out_tenth.training import INPUTS, RANKS, UPDATES

__all__ = ["TENTH", "TENTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *RESUMES, *EVALUATION, *RANKS)
TENTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
TENTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
