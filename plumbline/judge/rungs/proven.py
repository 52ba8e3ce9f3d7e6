"""Check of each native step against its mathematical definition, within one record.

The check needs no reference: each step is compared with its definition from the machine's own values at that step.
"""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.mismatches import CODES, Basis, Mismatch, Suspicion, differs
from plumbline.judge.native import kept_bits
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import other_kernels
from plumbline.schema import limits
from plumbline.schema.captured import captured
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import is_near, parts
from plumbline.schema.proof import Draws, Proof, ProofError
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import MANTISSA_BITS, PARTS
from plumbline.schema.tolerance import is_off, is_over, proof_limit
from plumbline.schema.verdict import Divergence, Finding, Note

_OPERATORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Attention", ("attention", "bmm", "matmul", "softmax")), ("Linear", ("linear", "matmul")),
    ("Norm", ("layer_norm",)), ("Embedding", ("embedding",)), ("GELU", ("gelu",)), ("Tanh", ("tanh",)),
)  # fmt: skip
"""Part of a module's class → the measured operators that it calls."""
_FORMATS = {"bfloat16": MANTISSA_BITS["bf16"], "float16": MANTISSA_BITS["fp16"], "float32": MANTISSA_BITS["fp32"]}


def proofs_of(record: RunRecord, part: str) -> tuple[Proof, ...]:
    """Return the steps of a part that were checked against their definition."""
    found = getattr(record.evidence, part)
    return found.proofs if found is not None else ()


def unproven(record: RunRecord, part: str, beside: RunRecord | None = None) -> Mismatch | None:
    """Return the first tensor of a training part that contradicts its definition.

    A captured loop has no rate of dropout that is asked for, and what `beside` contradicts alike is no difference.
    """
    is_captured = captured(record.spec)
    shared = (
        {(e.stage, e.name) for proof in proofs_of(beside, part) for e in proof.errors if is_over(e)}
        if (is_captured and beside is not None)
        else set()
    )
    rate = None if is_captured else getattr(getattr(record.spec, part), "dropout", 0.0)
    # State that a loop changes by itself, such as clamped weights, is no fault where no other loop shows it.
    shared |= {("state", "weights")} if is_captured and beside is None else set()
    known = (
        {(each.name, each.rate) for proof in proofs_of(beside, part) for each in proof.draws if is_off(each)}
        if (is_captured and beside is not None)
        else set()
    )
    for proof in proofs_of(record, part):
        drawn = (
            draws
            for draws in proof.draws
            if (is_off(draws) and (draws.name, draws.rate) not in known) or (rate is not None and draws.rate != rate)
        )
        if (draws := next(drawn, None)) is not None:
            return _off_draws(part, proof, draws, draws.rate if rate is None else rate)
        over = (each for each in proof.errors if is_over(each) and (each.stage, each.name) not in shared)
        if (found := next(over, None)) is not None:
            return _off(record, part, proof, found)
    return None


def other_draws(pair: Pair, part: str) -> Mismatch | None:
    """Return the first step with a different number of dropout calls; a compiled model's modules count none."""
    sides = (proofs_of(side.record, part) for side in (pair.reference, pair.candidate))
    left, right = ([proof for proof in side if any(e.stage == "forward" for e in proof.errors)] for side in sides)
    known = {proof.step: _calls(proof) for proof in left}
    for proof in right:
        ours, theirs = known.get(proof.step), _calls(proof)
        if ours is not None and ours != theirs:
            calls, reference = sum(theirs.values()), sum(ours.values())
            why = fact("proof.other-draws", part=part, step=proof.step, calls=calls, reference=reference)
            metric = fact("proof.drawn", part=part, step=proof.step)
            at, suspicion = Divergence(stage="rng", step=proof.step, at="dropout"), Suspicion("rng", why)
            return differs(at, "proof.draws", metric, suspicion, observed=calls, limit=reference, detail=why)
    return None


def proof_notes(pair: Pair) -> Iterator[Note]:
    """Yield a note for each reason why a step's tensors were not compared with their definitions."""
    for side, loaded in pair.sides:
        for part in PARTS:
            lost = {proof.lost: proof.step for proof in reversed(proofs_of(loaded.record, part)) if proof.lost}
            for why, step in lost.items():
                yield Note(text=fact("proof.lost", part=part, side=side, step=step, why=why))


def proof_findings(pair: Pair) -> Iterator[Finding]:
    """Yield `inconclusive` for each part that proves nothing, or lacks memory for a proof, where bits may differ.

    A reason that the reference shares is one of the model or its settings; a shortage of memory never is.
    """
    for part in PARTS:
        left, right = (proofs_of(side.record, part) for side in (pair.reference, pair.candidate))
        if not other_kernels(pair, part):
            continue
        shared = {proof.lost for proof in left} if not any(proof.errors for proof in right) else None
        lost = (proof for proof in right if proof.lacks_memory or (shared is not None and proof.lost not in shared))
        if why := next((proof.lost for proof in lost), ""):
            detail = fact("proof.nothing", part=part, why=why)
            yield Finding(check="proof.steps", outcome="inconclusive", metric=fact("gap.proven-steps"), detail=detail)


def _calls(proof: Proof) -> dict[float, int]:
    calls: dict[float, int] = {}
    for draws in proof.draws:
        calls[draws.rate] = calls.get(draws.rate, 0) + draws.calls
    return calls


def _off(record: RunRecord, part: str, proof: Proof, found: ProofError) -> Mismatch:
    code, sentence = CODES[found.stage], f"proof.{found.stage}"
    limit, block = proof_limit(found), _block_behind(record, proof, found)
    why = fact(sentence, name=found.name, kind=found.kind, part=part, step=proof.step)
    if block:
        why = fact("proof.block", name=block, kind=found.kind, parameter=found.name, part=part, step=proof.step)
    # In half precision a wrong output may lie within its limit, and show in the gradients alone.
    is_open = bool(block) and found.dtype != "float32" and part != "probe"
    bits = _kept_bits(record, part, found)
    if code == "operator" and bits is not None:
        code, why = "precision", fact("proof.format", name=found.name, kind=found.kind, part=part, bits=bits)
    evidence = (fact("proof.error", error=found.error, limit=limit, format=found.dtype),) if found.dtype else ()
    metric = fact("proof.metric", stage=found.stage, name=found.name, part=part, step=proof.step)
    at = Divergence(stage=found.stage, step=proof.step, at=block or found.name)
    # fp64 on both sides confirms a format, and shows what it hides.
    suspicion = Suspicion(code, why, evidence, (found.name,), shown=code != "precision" and not is_open)
    basis: Basis = "computed" if is_open else "proven"
    numbers = {"observed": found.error, "limit": limit, "detail": why}
    return differs(at, f"proof.{found.stage}", metric, suspicion, basis=basis, **numbers)


def _block_behind(record: RunRecord, proof: Proof, found: ProofError) -> str:
    """Return the block whose backward pass is wrong, if a parameter's own module computes its gradient rightly."""
    same = (each for each in proof.errors if (each.stage, each.name) == ("gradient", found.name))
    is_right = found.stage == "gradient" and any(each.kind != found.kind and not is_over(each) for each in same)
    modules = record.evidence.model.modules if is_right and record.evidence.model is not None else ()
    around = (name for name, kind in modules if found.name.startswith(f"{name}.") and kind.startswith(found.kind))
    return max(around, key=len, default="")


def _kept_bits(record: RunRecord, part: str, found: ProofError) -> int | None:
    """Return the mantissa bits that the module's own operators keep, if too few bits explain the error."""
    wanted = MANTISSA_BITS[record.spec.precision_of(part)]
    own = next((operators for kind, operators in _OPERATORS if kind in found.kind), ())
    kept = {name.removeprefix("compiled "): bits for name, bits in kept_bits(record, part).items()}
    if kept.get("attention scores") == limits.SCORE_BITS:
        del kept["attention scores"]  # the measurement ended there, and says nothing
    fewest = min((bits for name, bits in kept.items() if name.startswith(own)), default=wanted)
    if wanted - fewest < limits.FEWER_BITS or found.error is None:
        return None
    error = found.error * 2.0 ** -(_FORMATS.get(found.dtype, MANTISSA_BITS["fp32"]) + 1)
    return fewest if error <= limits.COARSE_UNITS * 2.0**-fewest else None


def _off_draws(part: str, proof: Proof, draws: Draws, wanted: float) -> Mismatch:
    why: Statement = fact("proof.draws", name=draws.name, part=part, step=proof.step, rate=draws.rate)
    if draws.rate != wanted:
        why = fact("stated.dropout", part=part, dropout=draws.rate, wanted=wanted)
    if draws.alike:
        why = fact("proof.one-mask", name=draws.name, part=part, step=proof.step)
    if not draws.calls:
        why = fact("proof.nothing-drawn", name=draws.name, part=part, step=proof.step)
    at = Divergence(stage="rng", step=proof.step, at=draws.name)
    numbers = {"observed": 1 - draws.kept / draws.elements if draws.elements else None, "limit": wanted}
    metric = fact("proof.dropped", name=draws.name, part=part, step=proof.step)
    suspicion = Suspicion("rng", why, shown=True)
    return differs(at, "proof.draws", metric, suspicion, basis="proven", detail=why, **numbers)


def draw_findings(pair: Pair) -> list[Finding]:
    """Return a finding if the candidate failed the round's randomized check.

    Equal windows imply equal answers of an honest training; unequal ones are findings of their own.
    """
    sides = [side.record for side in (pair.reference, pair.candidate)]
    if pair.probes is None or not sides[0].round_id or any(side.experiment is not None for side in sides):
        return []
    left, right = (probe.portable for probe in pair.probes)
    asked, given = (side.drawn if side is not None else None for side in (left, right))
    is_apart = left is not None and right is not None and next(parts(left, right), None) is not None
    is_equal = asked is None or (given is not None and is_near(asked, given))
    if sides[0].round_id != sides[1].round_id or is_apart or is_equal:
        return []
    finding = Finding(
        check="record.draw", outcome="invalid", metric=fact("windows.draw"), observed=_number(given),
        limit=_number(asked),
        detail=fact("windows.answered"),
    )  # fmt: skip
    missing = finding.replace(outcome="inconclusive", detail=fact("windows.unanswered"))
    return [missing if given is None else finding]


def _number(sketch: tuple[float, ...] | None) -> float | None:
    return None if sketch is None else sketch[0]
