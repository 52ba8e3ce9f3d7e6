"""Production gate: what `speed` trained, and its replay against the portable leg and the definitions.

A record shows by itself whether its production kernels compute what the portable leg computes; the reference vouches
for what its number formats explain. Where equal bits are due, a first different bit is a drift of any size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from plumbline.judge.gates.gate import GateRequest, GateResult
from plumbline.judge.gates.production_formats import (
    first_format,
    format_finding,
    is_comparable,
    is_compiled,
    is_over,
)
from plumbline.judge.gates.trail import batch_difference, later_difference, start_difference, trail_of, wrong_clipping
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import other_kernels
from plumbline.judge.spec_precision import other_format
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact
from plumbline.schema.production import ProductionEvidence, ProductionTap, ProductionTrial
from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import floor_of, production_limit, relative
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding, Note, Stage


def production_gate(pair: Pair, _request: GateRequest) -> GateResult:
    """Judge the candidate's training at production settings."""
    sides = tuple(side.record.evidence.speed for side in (pair.reference, pair.candidate))
    if sides[1] is None or pair.candidate.record.experiment is not None:
        return GateResult()
    off = batch_difference(pair) or start_difference(pair)
    if off is None and (off := _other_format(pair) or _first_excess(pair)) is not None and _is_unsteady(pair):
        cause = Cause(code="nondeterminism", sure="likely", why=fact("production.unsteady"))
        off = replace(off, causes=(cause,), unexplained=None)
    off = off or _off_process(pair)
    if off is None:
        off = later_difference(pair, is_due=_bits_due(pair))
    return off or GateResult((*_proven(pair), *_lost(pair)))


def production_notes(pair: Pair) -> tuple[Note, ...]:
    """Return why the candidate's production settings are not judged module by module, if they are not."""
    spec, replay = pair.candidate.record.spec, _replay(pair.candidate)
    if spec.speed is None or spec.probe is None or pair.candidate.record.experiment is not None:
        return ()
    if not (spec.speed.production_steps and spec.probe.portable_steps):
        return (Note(text=fact("production.off")),)
    return (Note(text=fact("production.lost", why=replay.lost)),) if replay is not None and replay.lost else ()


def _lost(pair: Pair) -> Iterator[Finding]:
    """Yield a finding if the replay was lost, and the training's bits do not prove what it would have."""
    replay, probe = _replay(pair.candidate), pair.candidate.record.spec.probe
    if replay is None or not replay.lost or probe is None or not probe.portable_steps:
        return
    if trail_of(pair.reference) is None or later_difference(pair, is_due=True) is not None:
        detail = fact("production.lost", why=replay.lost)
        yield Finding(check="production.evidence", outcome="inconclusive", metric="replay", detail=detail)


def explains_curve(pair: Pair, result: GateResult) -> bool:
    """Return whether a gate's result is an output or a loss that the curve's first step has as well.

    It is of the curve's precision, and no choice that the curve does not share, such as fused attention, removes it.
    """
    spec, replay = pair.candidate.record.spec, _replay(pair.candidate)
    if spec.speed is None or spec.learn is None or replay is None or not result.causes:
        return False
    removed = [trial.change for trial in replay.trials if trial.after is not None and trial.after <= trial.limit]
    is_shared = spec.speed.precision == spec.learn.precision and all(each.endswith("=fp32") for each in removed)
    return is_shared and result.at is not None and result.at.stage in {"forward", "loss"} and result.at.step == 0


_ORDER: tuple[Stage, ...] = ("forward", "loss", "gradient", "optimizer")


def _first_excess(pair: Pair) -> GateResult | None:
    """Return the first rung beyond its limit; where bits are due, a different bit of an earlier rung comes first."""
    over, bit = next(_excesses(pair, _vouched(pair)), None), _different_bit(pair)
    if over is None or bit is None or over.at is None or bit.at is None:
        return over or bit
    if _ORDER.index(over.at.stage) <= _ORDER.index(bit.at.stage):
        return over
    tried = over.causes[0]
    known = bit.causes or ((bit.unexplained,) if bit.unexplained else ())
    causes = tuple(cause.replace(sure=tried.sure, tried=tried.tried) for cause in known)
    return GateResult((*bit.findings, *over.findings), causes, bit.at)


def _other_format(pair: Pair) -> GateResult | None:
    """Return an operator, an output or a gradient in another number format than the reference's."""
    measured = other_format(pair, "speed")
    left, replay, spec = _replay(pair.reference), _vouched(pair), pair.candidate.record.spec.speed
    tensor = None
    if left is not None and replay is not None and spec is not None:
        tensor = first_format(left, replay, spec.precision, partial(is_comparable, pair), are_due=_bits_due(pair))
    if measured is not None:
        finding, why, at = measured.findings[0], measured.suspicions[0].why, measured.at
    elif tensor is not None:
        finding, why, at = format_finding(*tensor)
    else:
        return None
    trials = replay.trials if replay is not None else ()
    return _drift(finding, "precision", why, at, trials=[each for each in trials if each.stage == trials[0].stage])


def _by_consequence(replay: ProductionEvidence) -> list[ProductionTap]:
    """Return outputs in the order of execution, then gradients from the loss backwards."""
    forward = [tap for tap in replay.taps if tap.stage == "forward"]
    return [*forward, *(tap for tap in reversed(replay.taps) if tap.stage == "gradient")]


def _replay(side: LoadedRecord) -> ProductionEvidence | None:
    speed = side.record.evidence.speed
    return speed.production if speed is not None else None


def _vouched(pair: Pair) -> ProductionEvidence | None:
    """Return the candidate's replay with the reference's envelopes: a candidate's own does not vouch for it.

    A fault of what both runs of a replay share would widen its own limit.
    """
    replay = _replay(pair.candidate)
    return _vouched_by(pair, replay) if replay is not None else None


def _vouched_by(pair: Pair, replay: ProductionEvidence) -> ProductionEvidence:
    reference = _replay(pair.reference)
    if reference is None or reference.lost:
        return replay
    known = {(tap.stage, tap.name): tap.envelope for tap in reference.taps}
    taps = tuple(tap.replace(envelope=known.get((tap.stage, tap.name)) or tap.envelope) for tap in replay.taps)
    return replay.replace(taps=taps, loss_envelope=reference.loss_envelope or replay.loss_envelope)


def _off_process(pair: Pair) -> GateResult | None:
    """Return what the replay of one more process of the candidate's shows by itself, beside that of its first."""
    replay, spec = _replay(pair.candidate), pair.candidate.record.spec.speed
    if replay is None or spec is None:
        return None
    for other in replay.processes:
        alone = replay.replace(steps=other.steps, taps=other.taps, loss_error=None, trials=(), processes=())
        found = first_format(replay, alone, spec.precision, lambda *_: True, are_due=False)
        off = next(_excesses(pair, _vouched_by(pair, alone)), None)
        if found is not None:
            finding, why, at = format_finding(*found)
            off = _drift(finding, "precision", why, at)
        if off is not None:
            why = fact("production.process", rank=other.rank, part=off.causes[0].why)
            return replace(off, causes=(off.causes[0].replace(why=why),))
    return None


def _excesses(pair: Pair, replay: ProductionEvidence | None) -> Iterator[GateResult]:
    """Yield what a replay of the candidate's shows without equal bits, in the order of consequence."""
    spec = pair.candidate.record.spec
    if spec.speed is None or replay is None or replay.lost:
        return
    precision = spec.speed.precision
    yield from _beyond(replay, "forward", precision)
    yield from _losses(replay, precision)
    yield from _beyond(replay, "gradient", precision)
    norms = [(step.step, step.gradient_norm, step.gradient_norm_clipped) for step in replay.steps if not step.skipped]
    if (clipping := wrong_clipping(norms, spec.optimizer.max_grad_norm)) is not None:
        yield clipping
    yield from _updates(replay)


def _beyond(replay: ProductionEvidence, stage: Stage, precision: Precision) -> Iterator[GateResult]:
    """Yield the first tensor of a stage beyond its limit: outputs forwards, gradients from the loss backwards."""
    taps = [tap for tap in replay.taps if tap.stage == stage]
    ordered = taps if stage == "forward" else list(reversed(taps))
    over = [tap for tap in ordered if is_over(tap, precision)]
    if not over:
        return
    first = over[0]
    limit = production_limit(first.envelope, first.stage, precision)
    finding = Finding(
        check=f"production.{stage}", outcome="drift",
        metric=fact("production.error", stage=stage, name=first.name or "model", precision=precision),
        observed=first.error, limit=limit, detail=fact("production.over", num=len(over), total=len(taps)),
    )  # fmt: skip
    codes: dict[Stage, CauseCode] = {"forward": "operator", "gradient": "gradient"}
    why = fact("production.module", kind=first.kind, name=first.name, stage=stage)
    evidence = (fact("production.exact", error=first.error, limit=limit),)
    trials = [trial for trial in replay.trials if (trial.stage, trial.name) == (first.stage, first.name)]
    # A module whose output is wrong in the replay that has module taps is nearer to the cause than the whole model.
    at = next((trial.name for trial in replay.trials if trial.stage == stage), first.name)
    chosen = trials or [trial for trial in replay.trials if trial.stage == stage]
    yield _drift(finding, codes[stage], why, Divergence(stage=stage, step=0, at=at), evidence=evidence, trials=chosen)


def _losses(replay: ProductionEvidence, precision: Precision) -> Iterator[GateResult]:
    """Yield a loss that is not that of its own logits, or that is too far from the portable leg's."""
    for step in replay.steps:
        gap, limit = relative(step.loss_reference, step.loss), floor_of("loss", "fp32")
        if not gap <= limit and not step.skipped:
            finding = Finding(
                check="production.loss", outcome="drift", metric=fact("production.loss", step=step.step),
                observed=gap, limit=limit,
            )  # fmt: skip
            why, at = (
                fact("production.loss-definition", format=step.loss_dtype),
                Divergence(stage="loss", step=step.step),
            )
            yield _drift(finding, "loss", why, at)
            return
    limit = production_limit(replay.loss_envelope, "loss", precision)
    if replay.loss_error is not None and replay.loss_error > limit + _head_noise(replay, precision):
        finding = Finding(
            check="production.loss", outcome="drift", metric=fact("production.loss", step=0),
            observed=replay.loss_error, limit=limit,
        )  # fmt: skip
        at = Divergence(stage="forward", step=0, at="logits")  # the loss agrees with its own logits
        yield _drift(finding, "operator", fact("production.loss-exact"), at)


def _head_noise(replay: ProductionEvidence, precision: Precision) -> float:
    """Return what the logits' own limit allows the loss: their errors may cancel in one run and not in another."""
    heads = [tap for tap in replay.taps if tap.stage == "forward"][-1:]
    return sum(production_limit(tap.envelope, "forward", precision) for tap in heads)


def _updates(replay: ProductionEvidence) -> Iterator[GateResult]:
    """Yield an update that is not AdamW's definition from the run's own gradients."""
    for step in replay.steps:
        if step.update_excess is not None and step.update_excess <= 1:
            continue
        finding = Finding(
            check="production.optimizer", outcome="drift",
            metric=fact("production.update", name=step.update_at, step=step.step),
            observed=step.update_excess, limit=1, unit="roundings",
        )  # fmt: skip
        trials = [trial for trial in replay.trials if trial.stage == "update"]
        at = Divergence(stage="optimizer", step=step.step, at=step.update_at)
        yield _drift(finding, "optimizer", fact("production.optimizer"), at, trials=trials)
        return


def _drift(
    finding: Finding, code: CauseCode, why: Statement, at: Divergence, *, evidence: tuple[Statement, ...] = (),
    trials: Sequence[ProductionTrial] = (),
) -> GateResult:  # fmt: skip
    """Return a drift, whose cause is confirmed if an exchange of one production choice removed the error."""
    tried = tuple(
        fact("production.trial", change=trial.change, name=trial.name or at.at, before=trial.before, after=trial.after)
        for trial in trials
    )
    removed = any(trial.after is not None and trial.after <= trial.limit for trial in trials)
    cause = Cause(code=code, sure="confirmed" if removed else "likely", why=why, evidence=evidence, tried=tried)
    return GateResult((finding,), (cause,), at)


def _is_unsteady(pair: Pair) -> bool:
    """Return whether the candidate's replay does not repeat itself, where the reference's does.

    On a GPU, sums of gradients by atomic additions need not repeat themselves.
    """
    left, right = _replay(pair.reference), _replay(pair.candidate)
    if left is None or right is None or pair.candidate.record.fingerprint.gpus:
        return False
    return left.repeated is True and right.repeated is False


def _bits_due(pair: Pair) -> bool:
    """Return whether equal bits are due: no reason for different rounding, and both replays repeat themselves.

    On a GPU, kernels may be chosen by their speed, night by night: equal operations show that they are not.
    """
    sides = (pair.reference, pair.candidate)
    steady = all((replay := _replay(side)) is not None and replay.repeated for side in sides)
    if not steady or other_kernels(pair, "speed"):
        return False
    if not any(side.record.fingerprint.gpus for side in sides):
        return True
    ours, theirs = (side.record.fingerprint.operations.get("speed") for side in sides)
    return bool(ours) and ours == theirs and not any(map(is_compiled, sides))


def _different_bit(pair: Pair) -> GateResult | None:
    """Return the replay's first different bit, where equal bits are due."""
    left, right = _replay(pair.reference), _replay(pair.candidate)
    if left is None or right is None or not _bits_due(pair):
        return None
    ours = {(tap.stage, tap.name): tap.sha256 for tap in left.taps}
    different = [tap for tap in _by_consequence(right) if ours.get((tap.stage, tap.name)) != tap.sha256]
    losses = [replay.steps[0].loss if replay.steps else None for replay in (left, right)]
    if not any(tap.stage == "forward" for tap in right.taps) and losses[0] != losses[1]:
        # Modules of a compiled or packed replay have no comparable outputs; its first loss shows that one differs.
        finding = Finding(check="production.bits", outcome="drift", metric=fact("production.loss", step=0))
        place = Divergence(stage="loss", step=0, at="loss")
        return _drift(finding, "operator", fact("production.first-loss"), place).as_guess()
    if not different:
        return None
    first = different[0]
    code: CauseCode = "operator" if first.stage == "forward" else "gradient"
    finding = Finding(
        check="production.bits", outcome="drift",
        metric=fact("production.bits", stage=first.stage, name=first.name), detail=fact("production.bits-due"),
    )  # fmt: skip
    why = fact("production.first-bit", kind=first.kind, name=first.name)
    return _drift(finding, code, why, Divergence(stage=first.stage, step=0, at=first.name))


def _proven(pair: Pair) -> Iterator[Finding]:
    """Yield what the replay proves at which settings."""
    spec, replay = pair.candidate.record.spec.speed, _vouched(pair)
    if spec is None or replay is None or replay.lost:
        return
    ratios = [
        (tap.error / limit, tap)
        for tap in replay.taps
        if tap.error is not None and (limit := production_limit(tap.envelope, tap.stage, spec.precision))
    ]
    if not ratios:
        return
    ratio, closest = max(ratios, key=lambda pair: pair[0])
    settings = fact(
        "production.settings", precision=spec.precision, attention=spec.attention,
        compiled="compiled" if spec.compile else "not compiled", fused="fused" if spec.fused_optimizer else "unfused",
    )  # fmt: skip
    equal = fact("production.equal", settings=settings)
    within = fact("production.within", settings=settings, ratio=ratio, num=len(replay.taps))
    yield Finding(
        check="production.equality", outcome="pass",
        metric=fact("production.error", stage=closest.stage, name=closest.name, precision=spec.precision),
        observed=closest.error, limit=production_limit(closest.envelope, closest.stage, spec.precision),
        detail=equal if _bits_due(pair) else within,
    )  # fmt: skip
