"""Decision on a series without experiments: a walk over the levels between its changes.

The changes that are printed are the steps of this walk, so that a verdict never contradicts them. A better level is a
proven gain, and the reference from then on; a worse one is a loss until a level ends it or a person accepts it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from plumbline.judge.history.allowed import Allowed
from plumbline.judge.history.decision import Decision, Detection, Onset
from plumbline.judge.history.detection import detect, lasting, onset
from plumbline.judge.history.episodes import Episode, episodes
from plumbline.judge.history.quantiles import t_quantile
from plumbline.judge.history.reference import Reference, reference_of
from plumbline.schema import limits

Values = NDArray[np.float64]
_WINDOWS = (limits.SIDE_NIGHTS, limits.LEAST_NIGHTS, limits.OWN_NIGHTS, limits.ENOUGH_NIGHTS)
"""Numbers of newest nights that may show a loss before ranks can show a change."""


def by_levels(here: Values, allowed: Allowed, floor: float) -> Decision:
    """Decide on the newest night by the changes of its level; `here` are finite nights since the accepted level began.

    A loss that is too new to be shown as a change is `inconclusive`: a detector reports it, and the newest night is
    worse than every earlier one, or the newest nights are a creep.
    """
    found = episodes(here)
    start, lost = walk(float(np.median(here[: found[0].index if found else None])), found, allowed.least_change)
    end = next((one.index for one in found if one.index > start), len(here))
    reference = reference_of(here[start:end], floor=floor, is_whole=end < len(here))
    if lost is not None and found:
        centre = reference.centre if reference else lost.before
        size = found[-1].after - centre
        dated = Onset(lost.index, lost.shape, size)
        return Decision("drift", "lasting", reference=reference, onset=dated, size=size)
    level = found[-1].index if found else 0
    present = here[level:]
    own = reference_of(present[:-1], floor=floor, prior=reference if level > start else None)
    if own is None:
        return Decision("pass", "quiet", reference=reference, size=float(found[-1].after - found[-1].before))
    fitted = _newest_loss(present, own)
    before = reference_of(present[: fitted.index], floor=floor, is_whole=True)
    for dated, earlier in ((fitted, before), *_since_the_first(present, floor)):
        shown = lasting(present, earlier, allowed.lasting_alpha, windows=_WINDOWS) if earlier is not None else None
        if shown is not None and shown.holds and shown.size > allowed.least_change:
            return Decision("drift", "lasting", reference=earlier, onset=_shifted(dated, level), size=shown.size)
    size = float(here[-1]) - own.centre
    detections = _open_loss(present, own, before or own, fitted, allowed)
    if detections:
        return Decision("inconclusive", "too-soon", detections, "", own, _shifted(fitted, level), size=size)
    gained = start > 0 and start == level
    return Decision("pass", "improved" if gained else "quiet", reference=own, size=size)


def walk(centre: float, found: tuple[Episode, ...], least: float) -> tuple[int, Episode | None]:
    """Return the first night of the reference's level after all changes, and the open loss, which the last level has.

    A level that is better by the least change is the new reference. A level within it of the reference ends a loss.
    """
    start, lost = 0, None
    for one in found:
        if one.after < centre - least:
            start, centre, lost = one.index, one.after, None
        elif one.after <= centre + least:
            lost = None
        else:
            lost = lost or one
    return start, lost


def _since_the_first(present: Values, floor: float) -> Iterator[tuple[Onset, Reference]]:
    """Yield the loss against the level's first nights: a steady creep has no other reference."""
    first = reference_of(present[: limits.FIRST_NIGHTS], floor=floor, is_whole=True)
    if first is not None and len(present) > limits.FIRST_NIGHTS:
        dated = onset(present, first)
        if dated.index > 0:
            yield dated, first


def _newest_loss(present: Values, own: Reference) -> Onset:
    """Return the split of a level's nights after which they are worse, by least squares; the last night without one."""
    width = limits.WINSOR * own.spread
    newest = abs(float(np.median(present[-limits.SIDE_NIGHTS :])) - own.centre)
    values = np.clip(present, own.centre - width, own.centre + width + newest)
    left = np.arange(1, len(values))
    sums = np.cumsum(values - values.mean())[left - 1]
    gains = np.where(sums < 0, sums**2 / (left * (len(values) - left)), 0.0)
    first = int(left[gains.argmax()]) if gains.max() > 0 else len(values) - 1
    return Onset(first, "step", float(np.median(present[first:]) - np.median(present[:first])))


def _open_loss(
    present: Values, own: Reference, before: Reference, fitted: Onset, allowed: Allowed
) -> tuple[Detection, ...]:
    """Return what the detectors report about a loss of the newest nights that is too new to be shown.

    Tonight alone counts if it is worse than every night before, which the n-th night is by chance once in n. An earlier
    first night of the loss counts while the nights since show at least half of it.
    """
    tonight, first = detect(present, 0, own, allowed), fitted.index
    if float(present[-1]) > float(present[:-1].max(initial=-np.inf)) and any(one.kind != "creep" for one in tonight):
        return tonight
    later = present[first + 1 :]
    is_worst = float(present[first]) > float(present[:first].max(initial=-np.inf))
    if not is_worst or not len(later) or float(np.median(later)) - before.centre < fitted.size / 2:
        return ()
    asked = [one for one in detect(present[: first + 1], first + 1, before, allowed) if one.kind != "creep"]
    jumps = np.diff(present[:first])
    jump, usual = float(present[first] - present[first - 1]), float(np.sqrt((jumps**2).mean()))
    if before.rho and jump > (limit := t_quantile(allowed.detection_chance, len(jumps))) * usual:
        # Nights that repeat each other know their level badly, and their steps well.
        asked.append(Detection("sudden", jump / usual, limit))
    return tuple(asked)


def _shifted(dated: Onset, level: int) -> Onset:
    return Onset(dated.index + level, dated.shape, dated.size)
