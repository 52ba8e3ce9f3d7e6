"""Open losses: asked about on an earlier night, and not ruled out.

Only a decision moves the reference: nights from the start of an open loss on enter none. Where an experiment has
cleared the software, or it is equal, the loss is the machine's: nights on which no detector reports it pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plumbline import limits
from plumbline.history.lasting import Lasting, lasting_loss
from plumbline.history.reference import Reference

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Question:
    """Loss that no later night has ruled out."""

    since: int
    """First night of the loss."""
    asked: int
    """Night of the first question."""
    size: float
    is_cleared: bool = False
    """Whether the software does not cause it, by the newest answer."""


def is_ruled_out(size: float, fresh: Values, reference: Reference) -> bool:
    """Return whether the newest nights rule out half of a loss.

    Half, because chance enlarges a loss that is noticed. `fresh` are the nights after the question. A loss that the
    reference's few nights cannot resolve counts as the smallest one that they can. A night counts no better than
    `WINSOR`, so that no single one decides.
    """
    if not len(fresh):
        return False
    pooled = reference.pooled(fresh)
    least = max(size / 2, pooled.resolvable(limits.RULED_OUT))
    off = np.maximum(fresh - reference.centre, -limits.WINSOR * pooled.spread)
    share = (1 - reference.rho) / (1 + reference.rho)
    return any(
        pooled.rules_out(
            reference.centre + float(newest.mean()), least, limits.RULED_OUT, max(len(newest) * share, 1.0)
        )
        for newest in (off[-num:] for num in (limits.LEAST_NIGHTS, limits.OWN_NIGHTS))
    )


def overdue_loss(here: Values, num_fresh: int, reference: Reference, alpha: float) -> Lasting:
    """Test whether the nights after the question show the loss."""
    length = min(num_fresh, limits.ENOUGH_NIGHTS)
    return lasting_loss(here, reference.pooled(here[-length:]), alpha, lengths=(length,))
