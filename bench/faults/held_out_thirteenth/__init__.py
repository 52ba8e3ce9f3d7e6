"""Thirteenth held-out set: faults at production settings, by a seventh writer who had not read the judge or results.

Drawn from what goes wrong with torch, transformers, flash-attention, accelerate, Liger, torchao and their like: scores
of a different distance, pages of a different text, gradients read without their strides, softmaxes over too much,
sinks, sums of a kernel in bf16, statistics of a different kind, sparse weights, gradients lost in races or added
twice, chunks of which the last one counts, products with a transposed weight, indices of the row before, strides that
a compiler loses, floats of eight bits, kernels of ADOPT, Grams and AdEMAMix, gradients of rank one, norms of a
different order, shares for steps, shards that are loaded twice, batches dealt in turn, rows cut or filled, masks shared
by rows, compressed matrices, momentum that restarts, checkpoints of roots, and evaluations that report averages, means
of classes, perplexities or drawn rows. Each fault has one cause: the first place where the training is not the
reference's.
"""

from __future__ import annotations

from bench.faults.held_out_thirteenth.controls import CONTROLS
from bench.faults.held_out_thirteenth.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_thirteenth.learning import EVALUATION, LEARNING, RESUMES
from bench.faults.held_out_thirteenth.training import INPUTS, RANKS, UPDATES

__all__ = ["THIRTEENTH", "THIRTEENTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *RESUMES, *EVALUATION, *RANKS)
THIRTEENTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
THIRTEENTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
"""Harmless differences at production settings: the right answer is `pass`."""
