"""Sixth held-out set: faults and causes fixed by a writer who had not read the judge or its results.

Sources: changelogs and issues of transformers, torch, tokenizers, datasets and accelerate (settings stored in
files, changed defaults, samplers without a state, schedulers joined at a boundary, formulas of other families in a
port), mistakes of exports, caches and restarts, and methods that a library may switch on by default. Faults of the
learning curve begin later than the probe ends: at an epoch's end, after an evaluation, or at a restart.
"""

from __future__ import annotations

from bench.faults.held_out_sixth.controls import CONTROLS
from bench.faults.held_out_sixth.data import DATA
from bench.faults.held_out_sixth.model import MODEL
from bench.faults.held_out_sixth.training import LEARNING, PAIRS, TRAINING

__all__ = ["SIXTH", "SIXTH_CONTROLS"]

SIXTH = (*DATA, *MODEL, *TRAINING, *LEARNING, *PAIRS)
SIXTH_CONTROLS = CONTROLS
