"""Proofs of a record's native steps: its first tensor beyond what its number format rounds.

It needs no reference: each step is compared with its definition from the machine's own values at that step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from plumbline.judge.gates.gate import GateResult
from plumbline.schema import limits
from plumbline.schema.fact import Statement, fact
from plumbline.schema.proof import Draws, Proof, ProofError
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import MANTISSA_BITS, Precision
from plumbline.schema.tolerance import proof_limit
from plumbline.schema.verdict import Cause, CauseCode, Divergence, Finding, Stage

PARTS = ("probe", "speed", "learn")
_CODES: dict[str, tuple[Stage, CauseCode]] = {
    "state": ("optimizer", "optimizer"), "forward": ("forward", "operator"), "loss": ("loss", "loss"),
    "gradient": ("gradient", "gradient"), "clipped": ("gradient", "gradient"), "optimizer": ("optimizer", "optimizer"),
}  # fmt: skip
_FORMATS = {"bfloat16": MANTISSA_BITS["bf16"], "float16": MANTISSA_BITS["fp16"], "float32": MANTISSA_BITS["fp32"]}


def proofs_of(record: RunRecord) -> Iterator[tuple[str, Proof]]:
    """Yield (part, proof) of all proven steps, in the order of the parts."""
    evidence = record.evidence
    for part, found in (("probe", evidence.probe), ("speed", evidence.speed), ("learn", evidence.learn)):
        for proof in found.proofs if found is not None else ():
            yield part, proof


def unproven(record: RunRecord) -> GateResult | None:
    """Return the first tensor of a record that is not what its definition gives; `None` without any."""
    for part, proof in proofs_of(record):
        drawn = next((draws for draws in proof.draws if _is_off(draws)), None)
        if drawn is not None:
            return _off_draws(part, proof, drawn)
        found = next((each for each in proof.errors if is_over(each)), None)
        if found is not None:
            return _off(record, part, proof, found)
    return None


def is_over(found: ProofError) -> bool:
    """Return whether an error is beyond its limit, or no number."""
    return found.error is None or not found.error <= proof_limit(found)


def _is_off(draws: Draws) -> bool:
    """Return whether dropout kept a share of elements that its rate gives by chance at most once in 10^9 draws."""
    expected = draws.elements * (1 - draws.rate)
    return abs(draws.kept - expected) > limits.DRAWS_SD * math.sqrt(max(expected * draws.rate, 1.0))


def _off(record: RunRecord, part: str, proof: Proof, found: ProofError) -> GateResult:
    stage, code = _CODES[found.stage]
    limit = proof_limit(found)
    why = fact(f"proof.{found.stage}", name=found.name, kind=found.kind, part=part, step=proof.step)
    bits = _kept_bits(record, part, found)
    if code == "operator" and bits is not None:
        code, why = "precision", fact("proof.format", name=found.name, kind=found.kind, part=part, bits=bits)
    evidence = (fact("proof.error", error=found.error, limit=limit, format=found.dtype),) if found.dtype else ()
    metric = fact("proof.metric", stage=found.stage, name=found.name, part=part, step=proof.step)
    finding = Finding(
        check=f"proof.{found.stage}", outcome="drift", metric=metric, observed=found.error, limit=limit, detail=why
    )
    cause = Cause(code=code, sure="confirmed", why=why, evidence=evidence)
    return GateResult((finding,), (cause,), Divergence(stage=stage, step=proof.step, at=found.name))


def _kept_bits(record: RunRecord, part: str, found: ProofError) -> int | None:
    """Return the bits of mantissa that products measurably keep, if these are fewer than asked and explain the error."""
    spec = {"probe": record.spec.probe, "speed": record.spec.speed, "learn": record.spec.learn}[part]
    precision: Precision = spec.precision if spec is not None else "fp32"
    prefix = "" if part == "probe" else f"{part}."
    kept = [
        bits for name, bits in record.fingerprint.mantissa_bits.items()
        if name.startswith(prefix) and (prefix or "." not in name)
    ]  # fmt: skip
    fewest = min(kept, default=MANTISSA_BITS[precision])
    if MANTISSA_BITS[precision] - fewest < limits.FEWER_BITS or found.error is None:
        return None
    error = found.error * 2.0 ** -(_FORMATS.get(found.dtype, MANTISSA_BITS["fp32"]) + 1)
    return fewest if error <= limits.COARSE_UNITS * 2.0**-fewest else None


def _off_draws(part: str, proof: Proof, draws: Draws) -> GateResult:
    why: Statement = fact("proof.draws", name=draws.name, part=part, step=proof.step, rate=draws.rate)
    finding = Finding(
        check="proof.draws", outcome="drift", metric=fact("proof.dropped", name=draws.name, part=part, step=proof.step),
        observed=1 - draws.kept / draws.elements if draws.elements else None, limit=draws.rate, detail=why,
    )  # fmt: skip
    at = Divergence(stage="rng", step=proof.step, at=draws.name)
    return GateResult((finding,), (Cause(code="rng", sure="confirmed", why=why),), at)
