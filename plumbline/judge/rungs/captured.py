"""Rungs of a captured loop: what only its hooks show, and its formulas in fp64."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from plumbline.judge.mismatches import CODES, Basis, Mismatch, Suspicion
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.forward import forward
from plumbline.judge.rungs.functions import function_notes
from plumbline.judge.rungs.gradient import gradient
from plumbline.judge.rungs.proven import proofs_of
from plumbline.schema import limits
from plumbline.schema.captured import CapturedEvidence, Exchange, Fp64Pass, SmallSketch
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.sketch import relative_error
from plumbline.schema.stage import Stage
from plumbline.schema.tolerance import floor_of, is_over, limit, loss_gap, relative
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Note


def captured_mismatches(pair: Pair) -> Iterator[Mismatch]:
    """Yield the first mismatch of each kind between two captured records."""
    left, right = (side.record.evidence.captured for side in (pair.reference, pair.candidate))
    if left is None or right is None:
        return
    for found in (
        _batch(pair, left, right), _mode(pair, left, right), _dropout(pair), _inputs(pair, left, right),
        _updated(left, right), *_exchanges(left, right), _formula(left, right), _loss(left, right),
        *_first_numbers(pair, left, right),
    ):  # fmt: skip
        if found is not None:
            yield found


def _mismatch(
    at: Divergence, code: CauseCode, why: Statement, basis: Basis = "given", *, shown: bool = True,
    **numbers: float | None,
) -> Mismatch:  # fmt: skip
    observed, most = numbers.get("observed"), numbers.get("limit")
    finding = Finding(
        check=f"captured.{at.stage}", outcome="drift", metric=fact("captured.metric", at=at.at, step=at.step or 0),
        observed=observed if observed is None or math.isfinite(observed) else None, limit=most, detail=why,
    )  # fmt: skip
    return Mismatch(at, (finding,), (Suspicion(code, why, shown=shown),), basis)


def _dropout(pair: Pair) -> Mismatch | None:
    left, right = pair.probes or (None, None)
    if left is None or right is None or left.dropout == right.dropout:
        return None
    ours, theirs = (", ".join(map(str, side.dropout or ())) or "0" for side in (left, right))
    return _mismatch(
        Divergence(stage="rng", step=0, at="dropout"), "rng", fact("log.dropout", dropout=theirs, reference=ours)
    )


def _mode(pair: Pair, left: CapturedEvidence, right: CapturedEvidence) -> Mismatch | None:
    """Return the modules that only one of two loops trains in evaluation mode."""
    names = [
        name
        for name in (*left.evaluating, *right.evaluating)
        if (name in left.evaluating) != (name in right.evaluating)
    ]
    steps = zip(*(side.is_training for side in pair.probes), strict=False) if pair.probes else ()
    step = 0 if names else next((step for step, (ours, theirs) in enumerate(steps) if ours != theirs), None)
    if step is None:
        return None
    why = fact("captured.mode", step=step, names=", ".join(names[:5]) or fact("captured.some-modules"))
    return _mismatch(Divergence(stage="settings", step=step, at="mode"), "model.architecture", why)


_LABELS = frozenset({"label", "labels", "target", "targets", "y"})


def _batch(pair: Pair, left: CapturedEvidence, right: CapturedEvidence) -> Mismatch | None:
    """Return the first batch that differs, by what became of its rows."""
    for ours, theirs in pair.common:
        names = [name for name in {**ours.batch, **theirs.batch} if ours.batch.get(name) != theirs.batch.get(name)]
        # What the loop names itself is its batch; the model's arguments may be computed of it.
        names = [name for name in names if name.startswith("batch.")] or names
        if names:
            step = ours.step
            code, why = _of_rows(left, right, step, names)
            return _mismatch(Divergence(stage="batch", step=step, at=names[0].removeprefix("batch.")), code, why)
    return None


def _of_rows(
    left: CapturedEvidence, right: CapturedEvidence, step: int, names: list[str]
) -> tuple[CauseCode, Statement]:  # fmt: skip
    content = [name for name in names if name.rpartition(".")[2] not in _LABELS]
    first = (content or names)[0]
    sides = [side.rows.get(first, ())[step : step + 1] for side in (left, right)]
    if not content or not all(sides):
        code: CauseCode = "data.content" if content else "data.labels"
        return code, fact("log.fields", fields=", ".join(names))
    ours, theirs = (side[0] for side in sides)
    num = sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))
    if len(ours) != len(theirs):
        return "data.order", fact("batch.num-rows", num=len(theirs), reference=len(ours))
    if Counter(ours) == Counter(theirs):
        return "data.order", fact("batch.order")
    known = {row for batch in left.rows.get(first, ()) for row in batch}
    if all(row in known for row in theirs):
        return "data.order", fact("batch.rows", num=num, total=len(theirs))
    return "data.content", fact("captured.rows", num=num, total=len(theirs), name=first.removeprefix("batch."))


def _gap(ours: SmallSketch | None, theirs: SmallSketch | None) -> float:
    if ours is None or theirs is None:
        return 0.0 if ours is theirs else math.inf
    error = relative_error(np.array(ours), np.array(theirs))
    return math.inf if error is None else error


def _inputs(pair: Pair, left: CapturedEvidence, right: CapturedEvidence) -> Mismatch | None:
    """Return the first float input beyond rounding: it may be data, or computed by the loop."""
    steps = zip(*(side.inputs.get(name, ()) for name in left.inputs for side in (left, right)), strict=False)
    names = list(left.inputs)
    for step, values in enumerate(steps):
        for place, name in enumerate(names):
            error, most = _gap(values[2 * place], values[2 * place + 1]), limit("forward", pair.precision, step)
            if error > most:
                why = fact("captured.input", name=name, step=step, error=error, limit=most)
                return _mismatch(
                    Divergence(stage="batch", step=step, at=name),
                    "data.content",
                    why,
                    "computed",
                    shown=False,
                    observed=error,
                    limit=most,
                )
    return None


def _updated(left: CapturedEvidence, right: CapturedEvidence) -> Mismatch | None:
    both = enumerate(zip(left.updated, right.updated, strict=False))
    step = next((step for step, (ours, theirs) in both if ours != theirs), None)
    if step is None:
        return None
    return _mismatch(
        Divergence(stage="optimizer", step=step, at="update"), "optimizer", fact("captured.one-updates", step=step)
    )


def _exchanges(left: CapturedEvidence, right: CapturedEvidence) -> Iterator[Mismatch]:
    """Yield what one side alone does to its gradients before the optimizer sees them."""
    known, clips = {each.step: each for each in left.exchanges}, list[tuple[Exchange, Exchange]]()
    for theirs in right.exchanges:
        ours = known.get(theirs.step)
        if ours is None:
            continue
        if set(theirs.absent) - set(ours.absent):
            why = fact("captured.absent", rank=theirs.absent[0], step=theirs.step)
            yield _mismatch(
                Divergence(stage="gradient", step=theirs.step, at=f"process {theirs.absent[0]}"), "gradient", why
            )
            return
        if set(theirs.apart) - set(ours.apart):
            rank, name = theirs.apart[0]
            why = fact("captured.apart", rank=rank, name=name, step=theirs.step)
            yield _mismatch(Divergence(stage="gradient", step=theirs.step, at=name), "gradient", why)
            return
        deviations = (ours.deviation or 0.0, theirs.deviation or 0.0)
        if deviations[1] > limits.SAME_RATIO > deviations[0]:
            why = fact("captured.changed", name=theirs.odd, step=theirs.step, deviation=deviations[1])
            yield _mismatch(Divergence(stage="clipped", step=theirs.step, at=theirs.odd), "gradient", why)
            return
        clips.append((ours, theirs))
    # One factor may be a loss scale's; a clip is the same norm at each step that it reaches.
    norms = [(a, b) for a, b in clips if a.max_norm is not None and b.max_norm is not None]
    if norms and all(relative(a.max_norm, b.max_norm) > limits.SAME_RATIO for a, b in norms):
        ours, theirs = norms[0]
        why = fact("captured.clipped", step=theirs.step, norm=theirs.max_norm or 0.0, reference=ours.max_norm or 0.0)
        yield _mismatch(Divergence(stage="clipped", step=theirs.step, at="clipping"), "gradient", why)
        return
    other = next(((a, b) for a, b in clips if abs((a.factor or 0.0) - (b.factor or 0.0)) > limits.SAME_RATIO), None)
    if other is not None:
        ours, theirs = other
        if ours.max_norm is None or theirs.max_norm is None:
            why = fact("captured.factor", step=theirs.step, factor=theirs.factor or 0.0, reference=ours.factor or 0.0)
            yield _mismatch(Divergence(stage="clipped", step=theirs.step, at="clipping"), "gradient", why)


def formula_gaps(left: Fp64Pass, right: Fp64Pass) -> Iterator[tuple[Stage, str, str, float]]:
    """Yield (stage, name, class, distance) of each tensor of two fp64 passes, in the order of computation."""
    theirs = {name: numbers for name, _, numbers in right.outputs}
    for name, kind, numbers in left.outputs:
        yield "forward", name, kind, _gap(numbers, theirs[name]) if name in theirs else math.inf
    known = dict(right.gradients)
    largest = max((float(np.linalg.norm(each)) for _, each in left.gradients if each is not None), default=0.0)
    for name, numbers in reversed(left.gradients):
        if name in known:
            gap, other = _gap(numbers, known[name]), known[name]
            if numbers is not None and other is not None:
                size = max(float(np.linalg.norm(numbers)), limits.SMALL_GRADIENT * largest)
                gap = float(np.linalg.norm(np.subtract(numbers, other))) / size if size else 0.0
            yield "gradient", name, "", gap


def _formula(left: CapturedEvidence, right: CapturedEvidence) -> Mismatch | None:
    """Return the first tensor of the fp64 passes that is another formula's."""
    ours, theirs = left.window, right.window
    if ours is None or theirs is None or ours.lost or theirs.lost or ours.fed != theirs.fed:
        return None
    for stage, name, kind, gap in formula_gaps(ours, theirs):
        if gap > limits.EXACT:
            code = CODES[stage]
            why = fact("captured.formula", stage=stage, kind=kind, name=name, gap=gap)
            return _mismatch(
                Divergence(stage=stage, step=0, at=name), code, why, "portable", observed=gap, limit=limits.EXACT
            )
    return None


def _loss(left: CapturedEvidence, right: CapturedEvidence) -> Mismatch | None:
    """Return a mismatch if two definitions of the loss give different numbers for the same outputs."""
    gap = 0.0 if left.loss is None or right.loss is None else relative(left.loss, right.loss)
    if gap <= limits.EXACT:
        return None
    why = fact("captured.loss", gap=gap)
    at = Divergence(stage="loss", step=0, at="loss")
    return _mismatch(at, "loss", why, "portable", observed=gap, limit=limits.EXACT)


def _has_equal_formulas(left: CapturedEvidence, right: CapturedEvidence) -> bool:
    """Return whether two fp64 passes read equal inputs and agree in each tensor."""
    ours, theirs = left.window, right.window
    if ours is None or theirs is None or ours.lost or theirs.lost or ours.fed != theirs.fed:
        return False
    return all(gap <= limits.EXACT for *_, gap in formula_gaps(ours, theirs))


def _first_numbers(pair: Pair, left: CapturedEvidence, right: CapturedEvidence) -> Iterator[Mismatch]:
    """Yield numbers of the first step beyond rounding: between machines nothing else has a limit.

    Equal formulas decide for outputs, of which a deep model's may differ by more than a fixed limit. So may its
    gradients: the loss and what follows the backward pass are left to show, with faults above half precision.
    """
    if not pair.common or not rounds_differently(pair.reference.record, pair.candidate.record, "probe"):
        return
    scale, rungs = 1.0, [forward, gradient]
    if _has_equal_formulas(left, right):
        scale, rungs = max(1.0, floor_of("gradient", "fp16") / floor_of("gradient", pair.precision)), [gradient]
    yield from (found for rung in rungs if (found := rung(replace(pair, scale=scale), 0)) is not None)
    ours, theirs = pair.common[0]
    gap, most = loss_gap(ours.loss, theirs.loss), floor_of("gradient", pair.precision)
    if ours.loss is not None and theirs.loss is not None and gap > most:
        why = fact("log.first-loss", loss=theirs.loss, reference=ours.loss)
        yield _mismatch(Divergence(stage="loss", step=0, at="loss"), "loss", why, "computed", observed=gap, limit=most)


def lost_formula(pair: Pair) -> Statement:
    """Return why two captured records do not show that their formulas are equal, or ""."""
    sides = [side.record.evidence.captured for side in (pair.reference, pair.candidate)]
    windows = [side.window for side in sides if side is not None and side.window is not None]
    if len(windows) < len(sides):
        return fact("captured.no-pass")
    if lost := next((window.lost for window in windows if window.lost), ""):
        return lost
    return "" if windows[0].fed == windows[1].fed else fact("captured.other-inputs")


def _draws_in_evaluation(record: RunRecord) -> Iterator[str]:
    """Yield the modules that draw dropout although they are in evaluation mode."""
    captured = record.evidence.captured
    if captured is None:
        return
    yield from captured.drawn
    for proof in proofs_of(record, "probe")[:1]:
        yield from (each.name for each in proof.draws if each.calls and each.name in captured.evaluating)


def _over(record: RunRecord) -> list[tuple[Stage, str]]:
    """Return (stage, name) of each tensor that is not what its definition gives."""
    return [(each.stage, each.name) for proof in proofs_of(record, "probe") for each in proof.errors if is_over(each)]


def captured_notes(pair: Pair) -> Iterator[Note]:
    """Yield what was not captured, and what is equal by its formulas."""
    sides = [side.record.evidence.captured for side in (pair.reference, pair.candidate)]
    if sides[0] is None or sides[1] is None:
        return
    unknown = dict.fromkeys((*sides[0].unknown, *sides[1].unknown))
    yield Note(text=fact("captured.unknown", what="; ".join(unknown)[:2000]))
    drawn = dict.fromkeys(name for _, side in pair.sides for name in _draws_in_evaluation(side.record))
    if drawn:
        yield Note(text=fact("captured.draws", names=", ".join(drawn)[:2000]))
    if pair.reference is pair.candidate:
        return
    names = sorted(name for name in {**sides[0].identity, **sides[1].identity}
                   if sides[0].identity.get(name) != sides[1].identity.get(name))  # fmt: skip
    if names:
        yield Note(text=fact("captured.identity", names=", ".join(names)[:2000]))
    yield from function_notes(pair)
    shared = [name for name in _over(pair.candidate.record) if name in _over(pair.reference.record)]
    if shared:
        yield Note(text=fact("captured.shared", names=", ".join(dict.fromkeys(name for _, name in shared))[:2000]))
    starts = [dict(side.weights).get(0) for side in pair.probes or ()]
    if len(set(starts)) > 1 and "own" in (sides[0].start, sides[1].start):
        yield Note(text=fact("captured.start"))
    ours, theirs = sides[0].window, sides[1].window
    if ours is not None and theirs is not None and ours.outputs and _has_equal_formulas(sides[0], sides[1]):
        gaps = [gap for *_, gap in formula_gaps(ours, theirs)]
        yield Note(code="portable", text=fact("captured.equal-formulas", num=len(gaps), largest=max(gaps)))
