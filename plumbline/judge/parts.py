"""Walk of a training in the order probe, speed, learn: the first part that shows its cause explains the later ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.evaluation import curve_evaluation, miscounted
from plumbline.judge.rungs.log import Trained, bits_due, logged
from plumbline.judge.rungs.production import unsteady
from plumbline.judge.rungs.proven import other_draws
from plumbline.judge.rungs.state import own_state
from plumbline.judge.rungs.windows import window_mismatch
from plumbline.judge.spec_precision import other_format
from plumbline.judge.stated import contradiction
from plumbline.judge.walk import Walk
from plumbline.schema.spec import PartName


def differing(pair: Pair, probe: Walk | None) -> Iterator[tuple[PartName, tuple[Mismatch, ...]]]:
    """Yield (part, its mismatches) of each part, up to the first whose cause is shown."""
    own = _of_probe(pair, probe)
    yield "probe", own
    parts: tuple[Trained, ...] = () if own else ("speed", "learn")
    for part in parts:
        found = of_part(pair, part)
        yield part, found
        if any(mismatch.suspicions[0].shown for mismatch in found):
            return


def _of_probe(pair: Pair, probe: Walk | None) -> tuple[Mismatch, ...]:
    """Return the probe's mismatches, and what the record shows to be wrong by itself beside them."""
    found = probe.mismatches if probe is not None else ()
    own = contradiction(pair.candidate, "probe") or miscounted(pair, "probe") or other_draws(pair, "probe")
    known = {mismatch.suspicions[0].code for mismatch in found} | {mismatch.at.stage for mismatch in found}
    return found if own is None or known & {own.suspicions[0].code, own.at.stage} else (*found, own)


def of_part(pair: Pair, part: Trained) -> tuple[Mismatch, ...]:
    """Return the mismatches of a part after the probe; of a curve, also that of its evaluation."""
    if pair.candidate.record.experiment is not None:
        return ()
    log = logged(pair, part)
    apart = attributed(log, formula(pair, part))
    other = evaluated(pair, log, loss=apart is None) if part == "learn" else None
    found = [mismatch for mismatch in (apart, other) if mismatch is not None]
    if len({mismatch.suspicions[0].code for mismatch in found}) < len(found):
        found = [replace(found[0], findings=(*found[0].findings, *found[1].findings))]
    return tuple(replace(mismatch, at=mismatch.at.replace(part=part)) for mismatch in found)


def formula(pair: Pair, part: Trained) -> Mismatch | None:
    """Return a mismatch of a part that rounding cannot explain, at the first step that a record shows."""
    proof, parted = contradiction(pair.candidate, part), own_state(pair, part, parted=True)
    found = (
        own_state(pair, part)
        or (unsteady(pair) if part == "speed" else None)
        or other_format(pair, part)
        or window_mismatch(pair, part)
        or proof
        or parted
        or other_draws(pair, part)
    )
    steps = [each.at.step for each in (proof, parted) if each is not None]
    return None if found is None else _first_at(found, *steps)


def attributed(apart: Mismatch | None, shown: Mismatch | None) -> Mismatch | None:
    """Attribute a difference in the logs to the cause that a record shows itself."""
    if apart is None or shown is None:
        return apart or shown
    both = (*apart.findings, *shown.findings)
    # What a step shows of itself says more than the first number that differs, and less than an exact log.
    if apart.suspicions[0].shown:
        return replace(apart, findings=both)
    step = apart.at.step
    if step and apart.at.at == "loss" and shown.suspicions[0].code in ("gradient", "optimizer"):
        step -= 1  # whose loss was still equal
    return replace(_first_at(shown, step), findings=both)


def _first_at(found: Mismatch, *steps: int | None) -> Mismatch:
    """Return a mismatch at the first of its own step and `steps`: each kind of evidence exists at some steps only."""
    first = min((each for each in (found.at.step, *steps) if each is not None), default=None)
    return replace(found, at=found.at.replace(step=first))


def evaluated(pair: Pair, log: Mismatch | None, *, loss: bool = True) -> Mismatch | None:
    """Return an evaluation that differs although its training does not.

    `log` is where the curves separate; `loss` is `False` if another loss function may explain an evaluation's.
    """
    parting = log.at.step if log is not None and log.at.step is not None else math.inf
    found = curve_evaluation(pair, parting if bits_due(pair, "learn") else -1)
    return found or miscounted(pair, "learn", loss=loss)
