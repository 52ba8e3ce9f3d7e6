"""Verdicts from run records, without I/O: two records, or whole rounds."""

from plumbline.judge.compared import Comparisons as Comparisons
from plumbline.judge.comparison import compare as compare
from plumbline.judge.consensus import TrustedReference as TrustedReference
from plumbline.judge.consensus import trusted_reference as trusted_reference
from plumbline.judge.gates.throughput import needs_rerun as needs_rerun
from plumbline.judge.rounds import judge_round as judge_round
from plumbline.judge.rounds import merge as merge
