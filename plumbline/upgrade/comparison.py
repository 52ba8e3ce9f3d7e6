"""Comparison of trainings in two environments on one machine. Pure.

Throughput and memory are compared by pairs of runs: both are new processes, and their order alternates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from plumbline.judge import compare
from plumbline.judge.comparison import cause_of
from plumbline.judge.pair import Pair
from plumbline.judge.statistics.paired import paired_test
from plumbline.judge.walk import logged
from plumbline.records import LoadedRecord
from plumbline.report.sentences import sentence_of
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding, Judgement
from plumbline.upgrade.answer import Measure, Memory, MemoryUse, Speed
from plumbline.upgrade.inputs import Inputs

_INPUTS: tuple[tuple[str, CauseCode, str, str], ...] = (
    ("rows", "data.content", "data.rows", "the dataset that is built has different rows"),
    ("vocabulary", "tokenization", "data.tokenizer", "the tokenizer that is trained has a different vocabulary"),
    ("token_ids", "tokenization", "data.tokens", "the same texts become different token ids"),
    ("weights", "weights.init", "weights.init", "the initial weights that are made have different values"),
)

LEAST_PAIRS = 3
MOST_PAIRS = 12
LOOKS = (LEAST_PAIRS, 4, 6, 9, MOST_PAIRS)
"""Numbers of pairs after which the interval is looked at; a quiet machine often decides after four."""
SEARCH_LOOKS = (*LOOKS, 18, 27, 40)
"""Looks of the search for a culprit: half of a known loss has to be told from none, and from the whole of it."""
_ALPHA = 0.05
"""One-sided, over all looks."""


def compare_training(reference: LoadedRecord, candidate: LoadedRecord, gates: Gates) -> Judgement:
    """Judge probe and learning curve of two trainings.

    One machine with equal kernels owes equal bits in the whole curve. After a probe that is equal to the bit, another
    version of a library is not a reason for another curve.
    """
    judgement = compare(reference, candidate, gates, against="current lock", throughput=False)
    if judgement.verdict not in ("pass", "inconclusive"):
        return judgement
    pair = Pair(reference, candidate)
    # Without a probe to say what rounding does, equal bits are asked for.
    has_bits = has_equal_bits(judgement) or pair.probes is None
    mismatch = logged(pair, "learn", is_due=True) if has_bits else None
    if mismatch is None:
        return judgement
    findings = tuple(finding.replace(against="current lock") for finding in mismatch.findings)
    return judgement.replace(
        verdict="drift",
        findings=(*judgement.findings, *findings),
        first_divergence=mismatch.at,
        causes=(cause_of(mismatch, judgement.suspects),),
    )


def has_equal_bits(judgement: Judgement) -> bool:
    """Return whether all probe bits are equal."""
    return any(note.code == "equal-bits" for note in judgement.notes)


def rounding_note(judgement: Judgement) -> str:
    """Describe differences within the rounding limit, or return ""."""
    notes = {note.code: sentence_of(note.text) for note in judgement.notes}
    return notes.get("rounding", "")


def compare_inputs(reference: Inputs, candidate: Inputs) -> Judgement:
    """Compare the input data of two trainings.

    These are rows, vocabulary, token ids and initial weights.
    """
    findings: list[Finding] = []
    causes: list[Cause] = []
    for name, code, check, why in _INPUTS:
        ours, theirs = getattr(reference, name), getattr(candidate, name)
        outcome = "pass" if ours == theirs else "drift"
        findings.append(
            Finding(
                check=check, outcome=outcome, metric="SHA-256", observed=theirs, limit=ours, against="current lock",
            )
        )  # fmt: skip
        if ours != theirs and not any(cause.code == code for cause in causes):
            causes.append(Cause(code=code, sure="likely", why=why))
    drift = bool(causes)
    at = (
        Divergence(stage="weights" if causes[0].code == "weights.init" else "data", at=causes[0].code)
        if drift
        else None
    )
    return Judgement(
        verdict="drift" if drift else "pass", findings=tuple(findings), first_divergence=at, causes=tuple(causes)
    )


@dataclass(frozen=True, slots=True)
class PairedDrop:
    """Fraction of throughput lost, with its confidence interval.

    Of memory: the share of the changed environment's peak that the current one does not need.
    """

    outcome: Literal["slower", "as fast", "undecided"]
    drop: float
    low: float
    high: float
    num_pairs: int
    measure: Measure = "throughput"
    pairs: tuple[float, ...] = ()
    """Each pair's fraction."""

    @property
    def least(self) -> float:
        """Return the smallest loss (for memory: growth) within the interval."""
        return self.low if self.measure == "throughput" else grown(self.low)


def grown(share: float) -> float:
    """Convert a fraction of the new amount to growth over the old."""
    return share / (1 - share)


def paired_drop(
    log_ratios: Sequence[float], *, slower_above: float, fast_below: float, num_looks: int = len(LOOKS),
    measure: Measure = "throughput",
) -> PairedDrop | None:  # fmt: skip
    """Estimate and test the fraction of throughput lost.

    `None` below three finite pairs. `as fast`: the whole interval lies below `fast_below`. `slower`: otherwise, if it
    lies above `slower_above`. It is the test of a night's A/B, with blocks of two runs. Their order alternates and is
    not drawn, so that the interval decides alone.
    """
    values = [value for value in log_ratios if math.isfinite(value)]
    if len(values) < LEAST_PAIRS:
        return None
    lost = -np.array(values)[:, None]
    tested = paired_test(lost, np.zeros_like(lost), _ALPHA / num_looks)
    if tested is None:
        return None
    drop, low, high = (-math.expm1(-value) for value in (float(lost.mean()), tested.low, tested.high))
    outcome: Literal["slower", "as fast", "undecided"] = "undecided"
    if high < fast_below:
        outcome = "as fast"
    elif low > slower_above:
        outcome = "slower"
    return PairedDrop(outcome, drop, low, high, len(values), measure, tuple(-math.expm1(value) for value in values))


def speed_of(drop: PairedDrop) -> Speed:
    """Convert a throughput comparison to its answer entry."""
    return Speed(
        outcome=drop.outcome, drop=drop.drop, low=drop.low, high=drop.high, num_pairs=drop.num_pairs, pairs=drop.pairs
    )


def memory_use(drop: PairedDrop, kind: Memory) -> MemoryUse:
    """Convert a memory comparison to growth, for the answer."""
    outcomes: dict[str, Literal["more", "as much", "undecided"]] = {"slower": "more", "as fast": "as much"}
    return MemoryUse(
        kind=kind, outcome=outcomes.get(drop.outcome, "undecided"), growth=grown(drop.drop), low=grown(drop.low),
        high=grown(drop.high), num_pairs=drop.num_pairs, pairs=tuple(map(grown, drop.pairs)),
    )  # fmt: skip
