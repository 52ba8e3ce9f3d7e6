"""Detectors of suspected regressions, and tests of whether recent nights show or rule out one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Decision, Detection, Onset, Past, among_all, level_reference, nights_since
from plumbline.judge.history.reference import Reference
from plumbline.judge.statistics.distributions import normal_quantile, rank_sum_chance, t_quantile
from plumbline.judge.statistics.samples import Values, autocorrelation_within, split_scores
from plumbline.schema import limits

_SPLITS = 2
"""Effective number of splits: the largest of their statistics exceeds a level about so many times as often as one."""
_WINDOWS = (limits.SIDE_NIGHTS, limits.LEAST_NIGHTS, limits.LAG_NIGHTS, limits.OWN_NIGHTS, limits.ENOUGH_NIGHTS)
"""Numbers of newest nights that may show a lasting regression."""


def detect(values: Values, start: int, reference: Reference, allowed: Allowed) -> tuple[Detection, ...]:
    """Return what the detectors report about the latest value.

    `values` are finite and of one level. A creep begins at `start` or later: experiments have already tested the
    earlier nights.
    """
    lost, freedom, chance = float(values[-1]) - reference.centre, reference.freedom, allowed.detection_chance
    limit = allowed.drop if reference.count >= limits.ENOUGH_NIGHTS else allowed.drop / 2
    beyond = t_quantile(chance, round(freedom)) if freedom < 30 else normal_quantile(1 - chance)
    tests = (
        Detection("limit", lost, limit if allowed.is_limited else math.inf),
        Detection("sudden", lost / reference.predicted(), beyond),
        _creep(values, start, reference, chance),
    )
    return tuple(test for test in tests if test.score > test.limit)


def _creep(values: Values, start: int, reference: Reference, chance: float) -> Detection:
    """Test for a slow or small regression by the largest t (Hawkins et al. 2003).

    The nights from each split on are compared with those before it, not with the reference's centre: few nights know
    their centre badly, and a growing reference takes in a regression that no night has shown.
    """
    num = len(values)
    splits = np.arange(max(start, limits.LEAST_NIGHTS, num - limits.REACH_NIGHTS), num)
    if not len(splits):
        return Detection("creep", 0.0, math.inf)
    off = np.clip((values - reference.centre) / reference.spread, -limits.WINSOR, limits.WINSOR)
    # The spread of few nights may be too small by chance.
    scores = split_scores(off, splits, least=limits.LEAST_SPREAD, most=limits.MOST_NIGHTS)
    best = int(splits[scores.argmax()])
    rho = min(reference.rho, autocorrelation_within(off, [best])) if reference.rho else 0.0
    independent = (1 - rho) / (1 + rho)
    freedom = max(round((min(best, limits.MOST_NIGHTS) + num - best) * independent) - 2, 2)
    score = float(scores.max()) * math.sqrt(independent)
    return Detection("creep", score, t_quantile(chance / _SPLITS, freedom), best)


def onset(values: Values, reference: Reference, reach: int = limits.REACH_NIGHTS, *, has_ramps: bool = True) -> Onset:
    """Fit a step, and unless not `has_ramps` a ramp, by least squares; return the better.

    `values` are one level's nights, finite, tonight last. A change that fills the newest `reach` began before them.
    """
    first = max(len(values) - reach, 0)
    off = values[first:] - reference.centre
    newest = abs(float(np.median(off[-limits.SIDE_NIGHTS :])))
    width = max(4 * reference.spread, newest + limits.WINSOR * reference.spread)
    # Sums over the nights from each start t0 to tonight, of the deviations and of (t - t0 + 1) times them.
    tail = np.clip(off, -width, width)[::-1].cumsum()[::-1]
    weighted = tail[::-1].cumsum()[::-1]
    count = np.arange(len(off), 0, -1, dtype=np.float64)
    squares = count * (count + 1) * (2 * count + 1) / 6
    step_gain = np.where(tail > 0, tail**2 / count, 0.0)
    ramp_gain = np.where((weighted > 0) & (count >= 4), weighted**2 / squares, 0.0)
    step, ramp = int(step_gain.argmax()), int(ramp_gain.argmax())
    fitted = Onset(first + step, "step", float(tail[step] / count[step]))
    if has_ramps and ramp_gain[ramp] > step_gain[step]:
        fitted = Onset(first + ramp, "creep", float(weighted[ramp] / squares[ramp] * count[ramp]))
    is_older = first > 0 and fitted.index < first + limits.LEAST_NIGHTS
    return onset(values, reference, 2 * reach, has_ramps=has_ramps) if is_older else fitted


def lasting(here: Values, reference: Reference, alpha: float) -> float:
    """Return the regression that the newest 3 to 20 nights show, or 0.

    `here` are the nights of one level, of which the first are the reference. Two tests must agree: the mean's t, which
    counts the autocorrelation but assumes the spread, and the exact rank sum, which is distribution-free but assumes
    exchangeable nights.
    """
    before = reference.count
    for num in (min(max(len(here) - before, limits.OWN_NIGHTS), limits.MOST_NIGHTS), *reversed(_WINDOWS)):
        newest = here[-num:]
        size = float(np.median(newest)) - reference.centre
        if len(here) < before + num or size <= 0:
            continue
        above = (newest[:, None] > here[None, :before]).sum() + (newest[:, None] == here[None, :before]).sum() / 2
        # No ranks of so few nights can reach the level: all of them must be worse, and normal noise must not do it.
        is_few = math.comb(before + num, num) * alpha < 1
        if is_few and (num < limits.LEAST_NIGHTS or len(here) >= before + num + limits.ENOUGH_NIGHTS):
            continue
        are_higher = above == before * num if is_few else rank_sum_chance(int(above), num, before) <= alpha
        if are_higher and _is_worse(here[:before], newest, reference, alpha, is_white=is_few):
            return size
    return 0.0


def _is_worse(older: Values, newest: Values, reference: Reference, alpha: float, *, is_white: bool) -> bool:
    """Return whether a two-sample t says that the newest nights are worse.

    It counts the autocorrelation of both sides, unless the noise `is_white`.
    """
    both, width = np.append(older, newest), limits.WINSOR * reference.spread
    medians = np.repeat([reference.centre, float(np.median(newest))], [len(older), len(newest)])
    off = np.clip(both, medians - width, medians + width) - reference.centre
    # Few nights seem correlated, or not, by chance.
    rho, error = autocorrelation_within(off, [len(older)]), 1 / math.sqrt(len(both))
    is_white = is_white or (rho <= error and len(both) >= 2 * limits.ENOUGH_NIGHTS)
    share = replace(reference, rho=0.0 if is_white else min(rho + error, limits.HIGHEST_RHO)).share
    t = float(split_scores(off, np.array([len(older)]), least=reference.spread)[0]) * math.sqrt(share)
    return t > t_quantile(alpha / _SPLITS, max(len(both) * share - 2, 1.0))


def is_shown(newest: Values, reference: Reference, alpha: float) -> bool:
    """Return whether the nights' mean is significantly worse than the reference."""
    width = limits.WINSOR * reference.spread
    off = newest - reference.centre
    mean = float(np.clip(off, -width, max(width, float(np.median(off)))).mean())
    predicted = reference.predicted(max(len(newest) * reference.share, 0.5))
    return mean / predicted > t_quantile(alpha / _SPLITS, round(reference.freedom))


def _careful(reference: Reference) -> Reference:
    """Enlarge the autocorrelation, unless enough nights show none."""
    if not reference.rho and reference.count >= limits.ENOUGH_NIGHTS:
        return reference
    return replace(reference, rho=min(reference.rho + 1 / math.sqrt(reference.count), limits.HIGHEST_RHO))


def least_shown(reference: Reference, alpha: float) -> float:
    """Return the smallest regression that 20 nights detect with 97.5% power.

    It is infinite if so few nights of the reference cannot reach the level.
    """
    num = _WINDOWS[-1]
    if math.comb(reference.count + num, num) * alpha < 1:
        return math.inf
    careful = replace(_careful(reference), later=num)
    predicted = careful.predicted(max(num * careful.share, 0.5))
    return (t_quantile(alpha / _SPLITS, round(careful.freedom)) + 2) * predicted


def is_ruled_out(
    size: float, fresh: Values, reference: Reference, *, is_cleared: bool = False, is_known: bool = False
) -> bool:
    """Return whether the newest nights rule out half of a regression.

    Half, because chance enlarges a loss that is noticed, and at most two SD: a single night may be any. The size of a
    call, which `is_known`, is certain. A loss that the reference's few nights cannot resolve is never ruled out, unless
    its cause `is_cleared` or it is known: it counts then as the smallest one that they can. `fresh` are the nights
    after the question, at least tonight. A night counts no better than one SD, so that no single one decides.
    """
    for num in (*_WINDOWS[1:], limits.MOST_NIGHTS):
        newest = fresh[-num:]
        pooled = reference.pooled(newest)
        if len(newest) >= limits.ENOUGH_NIGHTS:
            pooled = replace(pooled, rho=min(pooled.rho, autocorrelation_within(newest, [])))
        pooled = pooled if is_cleared or is_known else _careful(pooled)
        off = newest - reference.centre
        usual = float(np.median(off)) if len(off) >= limits.LEAST_NIGHTS else 0.0
        mean = float(np.maximum(off, min(usual, -pooled.spread)).mean())
        quantile = t_quantile(limits.ALPHA / 2 if is_known else limits.RULED_OUT, round(pooled.freedom))
        resolved = (quantile + 2) * pooled.error if is_cleared or is_known else 0.0
        counted = size if is_known else min(size, limits.NOTICED * pooled.spread)
        bound = mean + quantile * pooled.predicted(max(len(newest) * pooled.share, 1.0))
        # What no nights can resolve, a call that is nearer to its size than to none stays all the same.
        if bound < max(counted / 2, resolved) and not (is_known and mean >= counted / 2):
            return True
    return False


def without_ruled_out(past: Past, tonight: float) -> Past:
    """Drop an open suspected regression that later nights ruled out."""
    question, reference = past.question, level_reference(past)
    if question is None or reference is None:
        return past
    fresh = nights_since(past, question.asked + 1, tonight)
    is_over = is_ruled_out(question.size, fresh, reference, is_cleared=question.is_cleared)
    return replace(past, question=None, untested=len(past.values)) if is_over else past


def num_open_calls(past: Past, tonight: float) -> int:
    """Return the number of calls that no nights since have ruled out; all that follow one that is are over, too."""
    for place, call in enumerate(past.calls):
        fresh = nights_since(past, past.calls[-1].since, tonight)
        if is_ruled_out(call.size, fresh, call.before, is_known=True):
            return place
    return len(past.calls)


def known_call(past: Past, tonight: float) -> Decision:
    """Return the decision on a night of a reported regression.

    A regression that is not the software's alerts once: it is known then, and its nights pass.
    """
    first, call = past.calls[0], past.calls[-1]
    seen = nights_since(past, past.level, tonight)
    shape: Literal["step", "creep"] = onset(seen, call.before).shape
    size = float(np.median(seen[-limits.SIDE_NIGHTS :])) - first.before.centre
    return Decision(
        "pass" if call.is_cleared else "drift", "open-call", reference=first.before,
        onset=Onset(call.since, shape, size), size=size, is_cleared=call.is_cleared,
    )  # fmt: skip


def end_of_loss(past: Past, tonight: float) -> Onset:
    """Return the first night after a reported regression, and how much better it is."""
    call = past.calls[-1]
    lost = replace(call.before, centre=-call.before.centre - call.size)
    fitted = onset(-nights_since(past, call.since, tonight), lost)
    return replace(among_all(past, call.since, fitted), size=0.0)
