"""The throughput gate: one number per run, against the platform's own baseline."""

from __future__ import annotations

import math

from plumbline.judge.pair import Pair
from plumbline.judge.speed_causes import foreign_load, speed_cause
from plumbline.judge.suspects import differences, suspects_for
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Cause, Finding, Judgement, Outcome

__all__ = ["CHECK", "needs_rerun", "noise_of", "speed"]

CHECK = "speed.throughput"
_AWAITS = "a rerun has to confirm it"
_NOISY = 3.0
"""A drop must stand out this many times from the spread of the steps' own median."""


def needs_rerun(judgement: Judgement) -> bool:
    """Whether a slow run waits for its independent, confirming rerun."""
    return any(
        one.check == CHECK and one.outcome == "inconclusive" and _AWAITS in one.detail for one in judgement.findings
    )


def noise_of(speed: SpeedEvidence) -> float:
    """The standard error of a run's median step, relative to it, from the quartiles of its steps."""
    if not speed.step_seconds_quartiles or not speed.step_seconds or speed.steps < 1:
        return 0.0
    low, high = speed.step_seconds_quartiles
    spread = max(high - low, 0.0) / 1.349
    return 1.2533 * spread / speed.step_seconds / math.sqrt(speed.steps)


def speed(
    pair: Pair, gates: Gates, *, confirms: SpeedEvidence | None = None, demanded: bool = False
) -> tuple[list[Finding], list[Cause]]:
    """The finding on throughput, and the cause of a confirmed drop.

    `confirms` is the independent rerun of a run that was too slow; a drop is drift only if both runs show it. A pair
    whose throughput cannot be compared has no finding, unless somebody `demanded` one: silence would look like a pass.
    """
    hindrance = _hindrance(pair)
    left, right = pair.reference.record.evidence.speed, pair.candidate.record.evidence.speed
    if hindrance or left is None or right is None:
        return [_finding(None, gates, "inconclusive", hindrance)] if demanded else [], []
    drop = _drop(left, right)
    if drop is None:
        return [_finding(None, gates, "inconclusive", "no throughput was measured")], []
    numbers = f"{right.samples_per_second:.4g} samples/s where the baseline has {left.samples_per_second:.4g}"
    if drop <= gates.throughput_drop:
        return [_finding(drop, gates, "pass", numbers)], []
    if drop <= _NOISY * math.hypot(noise_of(left), noise_of(right)):
        return [_finding(drop, gates, "inconclusive", f"{numbers}: less than the steps' own spread")], []
    if confirms is None:
        why = speed_cause(left, right)[1]
        return [_finding(drop, gates, "inconclusive", f"{numbers}; {_AWAITS} ({why})")], []
    found = differences(pair.reference.record.fingerprint, pair.candidate.record.fingerprint)
    return _rerun(left, right, confirms, gates, found)


def _hindrance(pair: Pair) -> str:
    """Why the throughput of the two cannot be compared; empty if it can."""
    sides = {"reference": pair.reference.record, "candidate": pair.candidate.record}
    if sides["reference"].platform != sides["candidate"].platform:
        return "other platform: throughput is compared with a platform's own past only"
    without = [who for who, record in sides.items() if record.evidence.speed is None]
    return f"no speed part in the {' and the '.join(without)}" if without else ""


def _drop(left: SpeedEvidence, right: SpeedEvidence) -> float | None:
    base, here = left.samples_per_second, right.samples_per_second
    return 1 - here / base if base and here and base > 0 and here > 0 else None


def _rerun(
    left: SpeedEvidence, right: SpeedEvidence, confirms: SpeedEvidence, gates: Gates, found: tuple[str, ...]
) -> tuple[list[Finding], list[Cause]]:
    """What the second run makes of the first one's drop."""
    drop, again = _drop(left, right), _drop(left, confirms)
    if drop is None or again is None:
        return [_finding(drop, gates, "inconclusive", "the rerun measured no throughput")], []
    if again <= gates.throughput_drop:
        return [_finding(again, gates, "pass", f"a first run lost {drop:.1%}; the rerun does not confirm it")], []
    code, why, evidence = speed_cause(left, right)
    other, _, seconds = speed_cause(left, confirms)
    numbers = f"lost {drop:.1%}, and {again:.1%} in an independent rerun"
    others = (*foreign_load(left, right), *foreign_load(left, confirms))
    if (code is None or other != code) and others:
        detail = f"{numbers}; the machine was not quiet: {others[0]}"
        return [_finding(min(drop, again), gates, "inconclusive", detail)], []
    finding = _finding(min(drop, again), gates, "drift", numbers)
    if code is None or other != code:
        doubt = "two runs were slow, and their evidence names no one cause"
        return [finding], [Cause(code="unattributed", sure="unattributed", why=doubt, evidence=(*evidence, *seconds))]
    tried = ("an independent rerun: as slow, with the same signs",)
    suspects = suspects_for(code, found)
    return [finding], [Cause(code=code, sure="confirmed", why=why, evidence=evidence, suspects=suspects, tried=tried)]


def _finding(drop: float | None, gates: Gates, outcome: Outcome, detail: str) -> Finding:
    return Finding(
        check=CHECK,
        outcome=outcome,
        metric="drop of the throughput against the baseline",
        observed=drop,
        limit=gates.throughput_drop,
        unit="relative",
        detail=detail,
    )
