"""Check one record against its spec, its own numbers, and the definitions of its steps.

The checks need no reference: platforms that share a fault agree with each other. Without them, 8 of 77 shared faults
pass (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Callable

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.rungs.batch import batches_of_probe
from plumbline.judge.rungs.evaluation import own_mode
from plumbline.judge.rungs.gradient import own_clipping
from plumbline.judge.rungs.loss import own_loss
from plumbline.judge.rungs.optimizer import own_update
from plumbline.judge.rungs.production import own_formula
from plumbline.judge.rungs.proven import unproven
from plumbline.judge.rungs.rng import own_draws, own_dropout
from plumbline.records import LoadedRecord
from plumbline.schema.spec import PARTS, PartName

_QUESTIONS: tuple[tuple[Callable[[LoadedRecord, PartName], Mismatch | None], tuple[PartName, ...]], ...] = (
    (batches_of_probe, ("speed",)),
    (lambda loaded, part: unproven(loaded.record, part), ("speed", "learn")),  # the walk asks the probe
    (own_formula, ("speed",)),
    (own_loss, ("probe",)),
    (own_clipping, ("speed", "learn")),
    (own_dropout, PARTS),
    (own_draws, ("speed",)),
    (own_update, PARTS),
    (own_mode, ("probe", "learn")),
)
"""Each question with the parts that it is asked of, in the order of consequence."""


def contradiction(loaded: LoadedRecord, part: PartName) -> Mismatch | None:
    """Return the first contradiction within one part of a training; values of an experiment are imposed."""
    if loaded.record.experiment is not None or getattr(loaded.record.evidence, part) is None:
        return None
    answers = (question(loaded, part) for question, parts in _QUESTIONS if part in parts)
    return next((found for found in answers if found is not None), None)
