"""Eighth held-out set: faults at production settings, by a second writer who had not read the judge or its results.

Sources, beside mistakes of loaders, restarts and evaluations: pytorch/pytorch#108503 and #163588 (masks of fused
attention in bf16), flagos-ai/FlagGems#4988 (a fused decoupled decay computed as a penalty, and the reverse),
huggingface/transformers#34191 and #35203 (losses divided by items of the whole batch), BobMcDear/attorch#18 (a norm's
backward pass that loses its last block), huggingface/accelerate#575 (rows that fill the last batch),
allenai/allennlp#1650 (a schedule one step behind its checkpoint), PolymathicAI/the_well#77 (states that a resume does
not restore). Each fault has one cause: the first place where the training is not the reference's.
"""

from __future__ import annotations

from bench.faults.held_out_eighth.controls import CONTROLS
from bench.faults.held_out_eighth.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_eighth.learning import EVALUATION, LEARNING
from bench.faults.held_out_eighth.training import INPUTS, RANKS, UPDATES

__all__ = ["EIGHTH", "EIGHTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *EVALUATION, *RANKS)
EIGHTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
EIGHTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
