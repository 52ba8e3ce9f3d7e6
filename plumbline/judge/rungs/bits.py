"""Bitwise comparison of one kind of evidence, whatever the difference's size.

If no recorded difference explains different rounding, bits must be equal, and the first different bit is the place of
the cause, however small the difference is there.
"""

from __future__ import annotations

from plumbline.judge.mismatches import CODES, Mismatch, Suspicion, differs, of_log
from plumbline.judge.native import has_compiled, rounds_differently
from plumbline.judge.pair import Pair, TapError, apart, first_apart
from plumbline.judge.rungs.forward import suspicions
from plumbline.judge.rungs.model import other_modules
from plumbline.judge.rungs.optimizer import after_clipping
from plumbline.schema.captured import captured
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PartName
from plumbline.schema.stage import STAGES, Stage
from plumbline.schema.step_log import StepLog
from plumbline.schema.tolerance import UNIT, floor_of, loss_gap, relative
from plumbline.schema.verdict import CauseCode, Divergence

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
    is_within = _rounds(pair, measured) if measured is not None else _is_within(pair, step, stage)
    likely = _suspicions(pair, step, stage, tap, is_within=is_within)
    at, metric = Divergence(stage=stage, step=step, at=place), fact("origin.error", stage=stage, step=step)
    observed = measured.error if measured is not None and not measured.over else None
    numbers = {"observed": observed, "limit": 0.0, "detail": fact("origin.no-excuse")}
    return differs(at, "probe.bits", metric, *likely, basis="computed", **numbers)


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
    evidence = (fact("origin.equal-training"),)
    likely = (
        Suspicion("evaluation", fact("origin.evaluation"), evidence),
        Suspicion("nondeterminism", fact("origin.equal-machines"), evidence),
    )
    at = Divergence(stage="evaluation", at="logits")
    return differs(at, "probe.bits", fact("origin.evaluation-bits"), *likely, basis="computed")


def bits_due(pair: Pair, part: PartName) -> bool:
    """Return whether `speed` or `learn` must have equal bits on both sides.

    On a GPU, kernels of `speed` may be chosen by their time, night by night: equal operations show that they are not.
    """
    if other_kernels(pair, part):
        return False
    if part == "learn":
        return True
    sides = [side.record for side in (pair.reference, pair.candidate)]
    checks = (side.evidence.production for side in sides)
    if not all(each is not None and each.repeated for each in checks):
        return False
    if not any(side.fingerprint.gpus for side in sides):
        return True
    ours, theirs = (side.fingerprint.operations.get("speed") for side in sides)
    return bool(ours) and ours == theirs and not any(has_compiled(side, "speed") for side in sides)


def logged_bits(pair: Pair, part: PartName) -> Mismatch | None:
    """Return the first different loss, gradient norm or weights of a log, in computation order.

    Weights that differ by little may leave a loss its bits, but not change a norm by more than rounding does.
    """
    left, right = pair.logs(part) or (StepLog(), StepLog())
    done = first_apart(dict(left.weights), dict(right.weights))
    steps: dict[Stage, int | None] = {
        "loss": next(apart(left, right, "losses"), None),
        "gradient": next(apart(left, right, "gradient_norms"), None),
        "optimizer": None if done is None else done - 1,
    }
    found = [(step, STAGES.index(stage), stage) for stage, step in steps.items() if step is not None]
    if not found:
        return None
    step, _, stage = min(found)
    if stage == "optimizer":
        return of_log(
            part, Divergence(stage=stage, step=max(step, 0), at="weights"), stage, fact("log.weights", step=done)
        )
    if stage == "loss":
        return of_log(part, Divergence(stage=stage, step=step, at="loss"), *_of_loss(left, right, step))
    floor = floor_of("norm", pair.reference.record.spec.precision_of(part))
    is_large = relative(left.gradient_norms[step], right.gradient_norms[step]) > floor
    code: CauseCode = "gradient" if is_large or _is_weighed(left, step) else "unattributed"
    return of_log(part, Divergence(stage="gradient", step=step, at="norm"), code, fact("log.norm"))


def _of_loss(left: StepLog, right: StepLog, step: int) -> tuple[CauseCode, Statement]:
    """Guess the cause of a first different loss, from what is known to be equal before it."""
    if restarts := [at for at in (*left.resumed_at, *right.resumed_at) if at <= step]:
        return "optimizer", fact("log.after-resume", step=step, resumed_at=restarts[-1])
    if _is_weighed(left, step):
        return "operator", fact("log.forward", step=step)
    return "unattributed", fact("log.loss", step=step)


def _is_weighed(log: StepLog, step: int) -> bool:
    """Return whether a weights checksum exists at `step`, or `step` is 0."""
    return step == 0 or step in dict(log.weights)
