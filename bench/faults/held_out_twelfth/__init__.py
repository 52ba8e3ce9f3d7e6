"""Twelfth held-out set: faults at production settings, by a sixth writer who had not read the judge or its results.

Drawn from what goes wrong with torch, transformers, flash-attention, accelerate, Liger and their like: sums added to
what a buffer held, tiles that no grid reaches, gradients of values that are summed over heads, masks applied after a
softmax, statistics of the wrong axis, activations of a different model, gradients written where a slice or an ignored
token has none, residuals one element off, logarithms to the wrong base, weights, outputs and inputs in fewer bits,
kernels of AdaBelief, Muon and Adafactor, lists of tensors out of step, wrong totals of norms, restarted schedules,
seeds of a different process, stretched tables, stale labels, epochs that end early, merged and converted checkpoints,
and evaluations with margins, smoothed labels and lenient counts. Each fault has one cause: the first place where the
training is not the reference's.
"""

from __future__ import annotations

from bench.faults.held_out_twelfth.controls import CONTROLS
from bench.faults.held_out_twelfth.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_twelfth.learning import EVALUATION, LEARNING, RESUMES
from bench.faults.held_out_twelfth.training import INPUTS, RANKS, UPDATES

__all__ = ["TWELFTH", "TWELFTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *RESUMES, *EVALUATION, *RANKS)
TWELFTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
TWELFTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
