"""Fifth held-out set: faults and causes fixed by a writer who had not read the judge.

Sources: issues of transformers, torch, datasets, tokenizers and accelerate (losses divided by a wrong count, base seeds
drawn by loaders, states left in evaluation mode, converted names of LayerNorm's weights), and methods of papers that a
library may switch on by default. Fifteen faults are in the learning curve alone.
"""

from __future__ import annotations

from bench.faults.held_out_fifth.controls import CONTROLS
from bench.faults.held_out_fifth.data import DATA
from bench.faults.held_out_fifth.model import MODEL
from bench.faults.held_out_fifth.training import LEARNING, PAIRS, TRAINING

__all__ = ["FIFTH", "FIFTH_CONTROLS"]

FIFTH = (*DATA, *MODEL, *TRAINING, *LEARNING, *PAIRS)
FIFTH_CONTROLS = CONTROLS
