"""Ninth held-out set: faults at production settings, by a third writer who had not read the judge or its results.

Sources, beside mistakes of loaders, restarts and evaluations: NVIDIA/apex#411, #1444 and #132 (rows past a block of
LayerNorm, gradients of a fused softmax, evaluations with stale casts), Oneflow-Inc/oneflow#6149 (gradients of
LayerNorm's weight and bias exchanged), tenstorrent/tt-metal#6832 and ml-explore/mlx#2626 (tile padding and masks of
attention), aws-neuron/nki-samples#81 (dropout's backward pass), NVIDIA/TransformerEngine#227 (overlapping offsets of
dropout), ROCm/TransformerEngine#336 (a loss over ignored tokens), pytorch/pytorch#191433, #163407 and #187732 (a buffer
read after its change, the correction of second moments, gradients not exchanged after the first step),
deepspeedai/DeepSpeed#7839 (gradients over a loss scale that was never applied), huggingface/accelerate#641, #1451
and #2823 (clipping between micro-batches, batches skipped in each epoch), CodefyUI/CodefyUI#149 (a decayed rate as the
highest), rf-detr#1028 (moments restored by place). Each fault has one cause: the first place where the training is not
the reference's.
"""

from __future__ import annotations

from bench.faults.held_out_ninth.controls import CONTROLS
from bench.faults.held_out_ninth.kernels import ATTENTION, FORMATS, KERNELS
from bench.faults.held_out_ninth.learning import EVALUATION, LEARNING, RESUMES
from bench.faults.held_out_ninth.training import INPUTS, RANKS, UPDATES

__all__ = ["NINTH", "NINTH_CONTROLS"]

_FAULTS = (*ATTENTION, *KERNELS, *FORMATS, *UPDATES, *INPUTS, *LEARNING, *RESUMES, *EVALUATION, *RANKS)
NINTH = tuple(sorted(_FAULTS, key=lambda entry: entry.workload))
"""By workload, so that a part of the set needs few references."""
NINTH_CONTROLS = tuple(sorted(CONTROLS, key=lambda entry: entry.workload))
