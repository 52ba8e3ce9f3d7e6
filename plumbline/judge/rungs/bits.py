"""Bitwise comparison of one kind of evidence, whatever the difference's size.

If no recorded difference explains different rounding, bits must be equal, and the first different bit is the place of
the cause, however small the difference is there.
"""

from __future__ import annotations

from plumbline.judge.mismatches import CODES, Mismatch, Suspicion
from plumbline.judge.native import rounds_differently
from plumbline.judge.pair import Pair, TapError
from plumbline.judge.rungs.forward import suspicions
from plumbline.judge.rungs.model import other_modules
from plumbline.judge.rungs.optimizer import after_clipping
from plumbline.schema.captured import captured
from plumbline.schema.fact import Statement, fact
from plumbline.schema.stage import Stage
from plumbline.schema.tolerance import UNIT, floor_of, loss_gap, relative
from plumbline.schema.verdict import Divergence, Finding

FIELDS: dict[Stage, str] = {
    "forward": "logits", "loss": "loss", "gradient": "gradients", "clipped": "clipped_bits", "optimizer": "weights",
}  # fmt: skip
"""Field of a step that shows a stage's bits."""


def other_kernels(pair: Pair, part: str = "probe") -> tuple[Statement, ...]:
    """List the measured operations and modules that explain different rounding."""
    left, right = pair.reference.record, pair.candidate.record
    lines: list[Statement] = list(pair.rounding)
    lines += list(rounds_differently(left, right, left.experiment.part if left.experiment else part))
    if left.evidence.model and right.evidence.model:
        lines += [line for _, line in other_modules(left.evidence.model, right.evidence.model)]
    return tuple(lines)


def different_place(pair: Pair, step: int, stage: Stage) -> str | None:
    """Return the first tensor or number whose bits differ."""
    left, right = pair.common[step]
    name = FIELDS[stage]
    tap = _first_tap(pair, step, "forward") if stage == "forward" else None
    ours, theirs = getattr(left, name), getattr(right, name)
    is_missing = captured(pair.reference.record.spec) and None in (ours, theirs)  # recorded in one of them alone
    if tap is None and (ours == theirs or is_missing):
        return None
    measured = tap or _measured(pair, step, stage)
    return measured.reference.name if measured else {"forward": "logits", "clipped": "clipping"}.get(stage, stage)


def bits(pair: Pair, step: int, stage: Stage) -> Mismatch | None:
    """Return the mismatch of one evidence kind's bits at `step`."""
    place = different_place(pair, step, stage)
    if place is None:
        return None
    tap = _first_tap(pair, step, "forward") if stage == "forward" else None
    measured = tap or _measured(pair, step, stage)
    finding = Finding(
        check="probe.bits",
        outcome="drift",
        metric=fact("origin.error", stage=stage, step=step),
        observed=measured.error if measured is not None and not measured.over else None,
        limit=0.0,
        detail=fact("origin.no-excuse"),
    )
    is_within = _rounds(pair, measured) if measured is not None else _is_within(pair, step, stage)
    likely = _suspicions(pair, step, stage, tap, is_within=is_within)
    return Mismatch(Divergence(stage=stage, step=step, at=place), (finding,), likely)


def _rounds(pair: Pair, first: TapError) -> bool:
    """Return whether rounding can explain the first different tensor.

    A single operation on equal inputs rounds its result once, by a unit of its own format, whatever the precision is.
    """
    tap = first.reference
    if first.over or tap.stage != "forward" or not tap.leaf or pair.precision not in ("bf16", "fp16"):
        return not first.over
    most = {"float32": floor_of("forward", "fp32"), "bfloat16": UNIT["bf16"], "float16": UNIT["fp16"]}
    return first.error <= most.get(tap.dtype, first.limit)


def _measured(pair: Pair, step: int, stage: Stage) -> TapError | None:
    """Return the first sketched tensor that differs, in computation order."""
    if stage == "gradient":
        return _first_tap(pair, step, "gradient", last=True)
    return _first_tap(pair, step, "optimizer") if stage == "optimizer" else None


def _first_tap(pair: Pair, step: int, stage: Stage, *, last: bool = False) -> TapError | None:
    taps = [error for error in pair.errors(step, stage) if error.error > 0]
    return taps[-1 if last else 0] if taps else None


def _is_within(pair: Pair, step: int, stage: Stage) -> bool:
    """Return whether a step's loss and norms differ by rounding only."""
    left, right = pair.common[step]
    if stage == "forward":
        return loss_gap(left.defined_loss, right.defined_loss) <= pair.loss_limit(step)
    if stage == "loss":
        return loss_gap(left.loss, right.loss) <= pair.loss_limit(step)
    name = {"gradient": "gradient_norm", "clipped": "clipped_norm"}.get(stage)
    return name is not None and relative(getattr(left, name), getattr(right, name)) <= pair.norm_limit(step)


def _suspicions(pair: Pair, step: int, stage: Stage, tap: TapError | None, *, is_within: bool) -> tuple[Suspicion, ...]:
    evidence = (fact("origin.equal-before", stage=stage, step=step),)
    if stage == "forward":
        likely = list(suspicions(pair, step, tap)) if tap else []
        if not likely:
            likely = [Suspicion("operator", fact("forward.output", step=step), evidence)]
    else:
        likely = [Suspicion(CODES[stage], fact("origin.first-bit", stage=stage, step=step), evidence)]
        likely += [after_clipping(step)] if stage == "optimizer" else []
    doubt = Suspicion("nondeterminism", fact("origin.equal-machines"), evidence)
    if not is_within:
        return (*likely, doubt)
    kernel = Suspicion("kernel", fact("origin.rounding", stage=stage, step=step), evidence)
    return (kernel, doubt, *likely)


def evaluation_bits(pair: Pair) -> Mismatch | None:
    """Return the mismatch if the evaluations' bits differ."""
    if pair.probes is None:
        return None
    left, right = (probe.evaluation for probe in pair.probes)
    if left is None or right is None or left == right:
        return None
    finding = Finding(check="probe.bits", outcome="drift", metric=fact("origin.evaluation-bits"))
    evidence = (fact("origin.equal-training"),)
    likely = (
        Suspicion("evaluation", fact("origin.evaluation"), evidence),
        Suspicion("nondeterminism", fact("origin.equal-machines"), evidence),
    )
    return Mismatch(Divergence(stage="evaluation", at="logits"), (finding,), likely)
