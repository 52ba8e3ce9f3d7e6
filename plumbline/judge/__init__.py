"""The judge: pure decisions on records. `compare` two of them, or `judge_round` those of all platforms."""

from __future__ import annotations

from plumbline.judge.comparison import compare
from plumbline.judge.rounds import judge_round, merge
from plumbline.judge.speed import needs_rerun

__all__ = ["compare", "judge_round", "merge", "needs_rerun"]
