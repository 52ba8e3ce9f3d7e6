"""Production gate: check what training at production settings computed.

Across machines only what is exact is compared: batches, rates, number formats and portable windows. A record shows by
itself that its formula is the plain model's, and that compiled code rounds as the modules do, which prove themselves.
Where equal bits are due, a first different bit is a drift of any size.
"""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.gates.gate import GateRequest, GateResult
from plumbline.judge.gates.trail import batch_difference, later_difference, start_difference, trail_of
from plumbline.judge.mismatches import Mismatch
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import other_kernels
from plumbline.judge.rungs.windows import lost_windows, window_findings, window_mismatch
from plumbline.judge.spec_precision import other_format
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact
from plumbline.schema.production import ProductionEvidence
from plumbline.schema.tolerance import floor_of, kernel_limits
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding, Note, Stage

_CODES: dict[Stage, CauseCode] = {"forward": "operator", "loss": "loss", "gradient": "gradient"}


def production_gate(pair: Pair, _request: GateRequest) -> GateResult:
    """Judge the candidate's training at production settings."""
    if pair.candidate.record.evidence.speed is None or pair.candidate.record.experiment is not None:
        return GateResult()
    off = batch_difference(pair) or start_difference(pair)
    if off is None:
        off = _unsteady(pair) or _apart(pair) or own_checks(pair.candidate)
    if off is None:
        off = later_difference(pair, is_due=_bits_due(pair))
    return off or GateResult((*window_findings(pair, "speed"), *_checked(pair.candidate), *_lost(pair)))


def production_notes(pair: Pair) -> tuple[Note, ...]:
    """Return why the candidate's production settings were not judged, if so."""
    spec = pair.candidate.record.spec
    if spec.speed is None or pair.candidate.record.experiment is not None:
        return ()
    if not spec.speed.checks:
        return (Note(text=fact("production.off")),)
    checks = _checks(pair.candidate)
    return (Note(text=fact("production.lost", why=checks.lost)),) if checks is not None and checks.lost else ()


def _lost(pair: Pair) -> Iterator[Finding]:
    """Yield a finding if production checks are missing and bits may differ."""
    reasons = [checks.lost for side in (pair.reference, pair.candidate) if (checks := _checks(side)) is not None]
    why = next(filter(None, (*reasons, lost_windows(pair, "speed"))), "")
    if why and (trail_of(pair.reference) is None or later_difference(pair, is_due=True) is not None):
        detail = fact("production.lost", why=why)
        yield Finding(check="production.evidence", outcome="inconclusive", metric="checks", detail=detail)


def _checks(side: LoadedRecord) -> ProductionEvidence | None:
    speed = side.record.evidence.speed
    return speed.production if speed is not None else None


def _of_mismatch(mismatch: Mismatch) -> GateResult:
    suspicion = mismatch.suspicions[0]
    cause = Cause(code=suspicion.code, sure="confirmed", why=suspicion.why, evidence=suspicion.evidence)
    return GateResult(mismatch.findings, (cause,), mismatch.at)


def _apart(pair: Pair) -> GateResult | None:
    """Return a different number format, or a different portable training step."""
    found = other_format(pair, "speed") or window_mismatch(pair, "speed")
    return _of_mismatch(found) if found is not None else None


def _unsteady(pair: Pair) -> GateResult | None:
    """Return a finding if only the candidate's kernels are non-deterministic.

    On a GPU and in compiled code, sums of gradients by atomic additions need not repeat themselves.
    """
    left, right = _checks(pair.reference), _checks(pair.candidate)
    if left is None or right is None or pair.candidate.record.fingerprint.gpus or _is_compiled(pair.candidate):
        return None
    if not left.repeated or right.repeated is not False:
        return None
    stage: Stage = "loss" if right.unsteady == "loss" else "gradient"
    finding = Finding(
        check="production.repeated", outcome="drift", metric=fact("production.repetition"), observed=right.unsteady
    )
    cause = Cause(code="nondeterminism", sure="confirmed", why=fact("production.unsteady", name=right.unsteady))
    return GateResult((finding,), (cause,), Divergence(stage=stage, step=0, at=right.unsteady))


def own_checks(side: LoadedRecord) -> GateResult | None:
    """Return errors that a record's own production checks found, without a reference."""
    checks = _checks(side)
    if checks is None:
        return None
    for key, error in checks.formula:
        name, limit = key.partition(" ")[2], _formula_limit(key)
        if error is None or not error <= limit:
            why = fact("production.formula", name=name, stage=_stage(key))
            return _drift(_stage(key), name, error, limit, why)
    for found, limit in kernel_limits(checks.kernels):
        if found.error is None or not found.error <= limit:
            why = fact("production.compiled", name=found.name, stage=found.stage)
            return _drift(found.stage, found.name, found.error, limit, why)
    return None


def _stage(key: str) -> Stage:
    stage = key.partition(" ")[0]
    return "loss" if stage == "loss" else "gradient" if stage == "gradient" else "forward"


def _formula_limit(key: str) -> float:
    """Return the fp32 rounding limit for one checked tensor."""
    return floor_of(_stage(key), "fp32")


def _drift(stage: Stage, name: str, error: float | None, limit: float, why: Statement) -> GateResult:
    finding = Finding(
        check=f"production.{stage}", outcome="drift", metric=fact("production.error", stage=stage, name=name),
        observed=error, limit=limit,
    )  # fmt: skip
    cause = Cause(code=_CODES[stage], sure="confirmed", why=why)
    return GateResult((finding,), (cause,), Divergence(stage=stage, step=0, at=name))


def _bits_due(pair: Pair) -> bool:
    """Return whether reference and candidate must have equal bits.

    On a GPU, kernels may be chosen by their speed, night by night: equal operations show that they are not.
    """
    sides = (pair.reference, pair.candidate)
    if not all((checks := _checks(side)) is not None and checks.repeated for side in sides):
        return False
    if other_kernels(pair, "speed"):
        return False
    if not any(side.record.fingerprint.gpus for side in sides):
        return True
    ours, theirs = (side.record.fingerprint.operations.get("speed") for side in sides)
    return bool(ours) and ours == theirs and not any(map(_is_compiled, sides))


def _is_compiled(side: LoadedRecord) -> bool:
    """Return whether the throughput run used torch.compile."""
    trail, spec = trail_of(side), side.record.spec.speed
    asked = spec is not None and spec.compile
    return bool(trail.settings.get("compiled", asked) if trail is not None else asked)


def _checked(side: LoadedRecord) -> Iterator[Finding]:
    """Yield findings of a record's own formula and kernel checks."""
    spec, checks = side.record.spec.speed, _checks(side)
    if spec is None or checks is None or not checks.formula or checks.lost:
        return
    ratios = [((error or 0.0) / _formula_limit(key), key, error, _formula_limit(key)) for key, error in checks.formula]
    ratios += [
        ((each.error or 0.0) / limit, f"{each.stage} {each.name}", each.error, limit)
        for each, limit in kernel_limits(checks.kernels)
    ]
    _, key, error, limit = max(ratios, key=lambda each: each[0])
    is_closed = bool(checks.kernels)  # of shards, one process checks the formula alone
    settings = fact(
        "production.settings", precision=spec.precision,
        attention=spec.attention if is_closed or spec.attention == "eager" else "sdpa",
        compiled="compiled" if spec.compile and is_closed else "not compiled",
        fused="fused" if spec.fused_optimizer else "unfused",
    )  # fmt: skip
    yield Finding(
        check="production.equality", outcome="pass", observed=error, limit=limit,
        metric=fact("production.error", stage=_stage(key), name=key.partition(" ")[2]),
        detail=fact("production.within", settings=settings, num=len(ratios)),
    )  # fmt: skip
