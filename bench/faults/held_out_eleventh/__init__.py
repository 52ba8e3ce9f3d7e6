"""Eleventh held-out set: faults at production settings, by a fifth writer who had not read the judge or its results.

Drawn from what goes wrong with torch, transformers, flash-attention, accelerate, bitsandbytes and their like: rotations
and sigmoids of a different model's attention, gradients in each other's buffer, statistics that a kernel or a compiler
shares between tokens, tiles and chunks that are not stored, slopes taken from a buffer that is used again, gradients
divided by counts, scores and products in fewer bits, kernels of AdaMax, RAdam and 8-bit optimizers, tied weights
that are updated twice, norms of a step before, guards against overflow, labels of a cleared buffer, generators restored
between micro-batches, weights rescaled or pruned at the start, betas that follow the rate or a configuration, resumes
that read their data again, and evaluations of a shard, of an early exit or with metrics that are never reset. Each
fault has one cause: the first place where the training is not the reference's.
"""

from __future__ import annotations

from bench.faults.held_out_eleventh.controls import CONTROLS
from bench.faults.held_out_eleventh.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_eleventh.learning import EVALUATION, LEARNING, RESUMES
from bench.faults.held_out_eleventh.training import INPUTS, RANKS, UPDATES

__all__ = ["ELEVENTH", "ELEVENTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *RESUMES, *EVALUATION, *RANKS)
ELEVENTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
ELEVENTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
