"""Rung of the forward pass: the output of each module."""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion, differs
from plumbline.judge.pair import Pair, TapError
from plumbline.judge.rungs.model import other_modules
from plumbline.judge.rungs.rng import rng_differs
from plumbline.schema import limits
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Divergence


def forward(pair: Pair, step: int) -> Mismatch | None:
    """Return the first module, in execution order, with an output beyond rounding."""
    over = [error for error in pair.errors(step, "forward") if error.over]
    if not over:
        return None
    first = over[0]
    at = Divergence(stage="forward", step=step, at=first.reference.name)
    metric = fact("forward.output-error", name=at.at or fact("forward.whole-model"), step=step)
    likely, detail = suspicions(pair, step, first), fact("forward.modules", num=len(over))
    return differs(at, "probe.forward", metric, *likely, basis="computed", detail=detail, **first.numbers)


def suspicions(pair: Pair, step: int, first: TapError) -> tuple[Suspicion, ...]:
    """Return the possible causes of a module's different output, likeliest first."""
    name, kind = first.reference.name, first.reference.kind
    error = fact("forward.error", error=first.error, limit=first.limit)
    operator = Suspicion(
        "operator", fact("forward.operator", module=f"{kind} {name}"), (error, *_module_lines(pair, name)), (name,)
    )
    if _product_lost_bits(pair, kind):
        why = fact("forward.fewer-bits", kind=kind, name=name)
        likely = [Suspicion("precision", why, (error,), (name,)), operator]
    else:
        why = fact("forward.may-compute-fewer-bits", kind=kind, name=name)
        likely = [operator, Suspicion("precision", why, (error,), (name,))]
    if _draws(pair, step, kind):
        why = fact("forward.draws", kind=kind, name=name)
        likely.insert(0, Suspicion("rng", why, (error, *_drawn(pair, step)), (name,)))
    return tuple(likely)


def _product_lost_bits(pair: Pair, kind: str) -> bool:
    """Return whether one side's linear products lost bits, and this module is linear."""
    left, right = (side.record.fingerprint.mantissa_bits.get("linear") for side in (pair.reference, pair.candidate))
    return (
        kind.startswith("Linear") and left is not None and right is not None and abs(left - right) >= limits.FEWER_BITS
    )


def _module_lines(pair: Pair, name: str) -> tuple[Statement, ...]:
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return ()
    return tuple(line for at, line in other_modules(left, right) if at == name)


def _draws(pair: Pair, step: int, kind: str) -> bool:
    left, right = pair.common[step]
    later = step + 1 < len(pair.common) and bool(rng_differs(pair, step + 1)) and not rng_differs(pair, step)
    return later or (left.is_training != right.is_training) or "dropout" in kind.lower()


def _drawn(pair: Pair, step: int) -> tuple[Statement, ...]:
    left, right = pair.common[step]
    lines = []
    if left.is_training != right.is_training:
        lines.append(fact("forward.mode", mode="training" if right.is_training else "evaluation"))
    if step + 1 < len(pair.common) and rng_differs(pair, step + 1):
        lines.append(fact("forward.generators", step=step))
    return tuple(lines)
