"""Pure decisions on records: judge two, or all platforms of a round."""

from __future__ import annotations

from plumbline.judge.compared import Comparisons
from plumbline.judge.comparison import compare
from plumbline.judge.consensus import TrustedReference, trusted_reference
from plumbline.judge.gates.throughput import needs_rerun
from plumbline.judge.rounds import judge_round, merge

__all__ = ["Comparisons", "TrustedReference", "compare", "judge_round", "merge", "needs_rerun", "trusted_reference"]
