"""Decision without experiments: the nights alone decide.

A loss is drift once the newest nights show it at the budget's level, however many nights that takes, and a night passes
otherwise. Only a sudden loss that has too few nights to be shown yet is `inconclusive`: its nights, and those after a
detection among few nights, stay out of the reference until later nights rule the loss out, so that evidence adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from plumbline.history.allowed import Allowed
from plumbline.history.dating import onset
from plumbline.history.decision import Decision
from plumbline.history.detectors import Detection
from plumbline.history.lasting import longest_shown
from plumbline.history.reference import Reference

Values = NDArray[np.float64]


def by_nights_alone(
    here: Values, reference: Reference, detections: Sequence[Detection], allowed: Allowed
) -> Decision | None:
    """Decide on the newest night of `here`; `None` if no detector reports a loss, and the nights show none."""
    size = float(here[-1]) - reference.centre
    lost = longest_shown(here, reference, allowed.lasting_alpha, lengths=allowed.lasting_nights)
    decision = Decision("pass", "too-soon", tuple(detections), "", reference, size=size)
    if lost.holds and lost.size > allowed.least_change:
        dated = onset(here, reference)
        return replace(decision, verdict="drift", reason="lasting", onset=dated, size=lost.size, new=True)
    if not detections:
        return None
    is_sudden = any(detection.kind != "creep" for detection in detections)
    # Worse than every night before: whatever the distribution, as rare as one in all nights so far.
    is_record = float(here[-1]) > float(here[: -lost.num_nights].max(initial=-np.inf))
    return replace(decision, verdict="inconclusive") if is_sudden and is_record else decision
