"""Causes of one drift that need no further experiment."""

from __future__ import annotations

from plumbline.judge.comparison import cause_of
from plumbline.judge.mismatches import Mismatch
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Cause

SPEED = frozenset({"loader", "transfer", "throttling", "slow-device", "contention", "software"})
"""Causes of a drop in throughput."""


def unsteady(parting: Mismatch) -> Cause:
    """Return `nondeterminism` for a candidate that differs from its unchanged rerun."""
    place = (
        fact("place.at-step", stage=parting.at.stage, step=parting.at.step)
        if parting.at.step is not None
        else parting.at.stage
    )
    why = fact("attribution.unsteady", place=place, at=parting.at.at)
    return nondeterminism(why, tuple(finding.metric for finding in parting.findings))


def nondeterminism(why: Statement, evidence: tuple[Statement, ...] = ()) -> Cause:
    """Build the `nondeterminism` cause for a run that its rerun contradicts."""
    tried = (fact("rerun.different-bits"),)
    return Cause(code="nondeterminism", sure="confirmed", why=why, evidence=evidence, tried=tried)


_REFUTED_FOR_GOOD = frozenset({"kernel", "precision"})
"""Causes that are excluded where a difference stays the same in fp64: the difference is not rounding."""


def still_likely(mismatch: Mismatch, suspects: tuple[str, ...], tried: tuple[Statement, ...]) -> Cause:
    """Return the most likely cause when no experiment confirmed any.

    The place of such a mismatch is certain. A value that could not be restored exactly does not clear its suspect.
    """
    possible = [each for each in mismatch.suspicions if each.code not in _REFUTED_FOR_GOOD]
    return cause_of(mismatch, suspects, (possible or list(mismatch.suspicions))[0]).replace(tried=tried)


def unattributed(mismatch: Mismatch, suspects: tuple[str, ...], tried: tuple[Statement, ...]) -> Cause:
    """Return cause `unattributed`: no restored value removed the mismatch."""
    why = fact("attribution.unattributed", stage=mismatch.at.stage)
    return cause_of(mismatch, suspects).replace(code="unattributed", sure="unattributed", why=why, tried=tried)
