"""Rung 6: what each module put out."""

from __future__ import annotations

import math

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair, TapError
from plumbline.judge.rungs.model import other_modules
from plumbline.judge.rungs.rng import rng_differs
from plumbline.judge.tolerance import relative
from plumbline.schema.verdict import Divergence, Finding

__all__ = ["dtypes", "forward", "forward_numbers"]

_OWN_SHARE = 0.3
"""A run whose own fp64 run is at least this share of the difference away owes the difference to its rounding."""

_AUTOCAST = ("bf16", "fp16")

_FEWER_BITS = 4
"""Another number format has at least so many bits less; another formula may round away one or two."""


def dtypes(pair: Pair, step: int) -> Mismatch | None:
    """Another number format in force: of the logits, the loss or a module's output."""
    left, right = pair.common[step]
    pairs = [("logits", left.logits_dtype, right.logits_dtype), ("loss", left.loss_dtype, right.loss_dtype)]
    pairs += [(e.reference.name, e.reference.dtype, e.candidate.dtype) for e in pair.errors(step, "forward")]
    pairs += [(e.reference.name, e.reference.dtype, e.candidate.dtype) for e in pair.errors(step, "gradient")]
    differing = [(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]
    if not differing or pair.precision in _AUTOCAST:
        # Devices differ in which operations autocast leaves in fp32; there the numbers alone decide.
        return None
    tapped = [entry for entry in differing if entry[0] not in ("logits", "loss")]
    name, ours, theirs = (tapped or differing)[0]
    finding = Finding(
        check="probe.dtype",
        outcome="drift",
        metric=f"number format of {name} at step {step}",
        observed=theirs,
        limit=ours,
        detail=f"{len(differing)} formats differ",
    )
    stage = "loss" if name == "loss" else "forward"
    why = f"{name} comes in {theirs} in place of {ours}"
    suspicion = Suspicion("precision", why, precision_signs(pair), tuple(entry[0] for entry in tapped))
    return Mismatch(stage, Divergence(stage=stage, step=step, at=name), (finding,), (suspicion,), independent=True)


def forward(pair: Pair, step: int) -> Mismatch | None:
    """The first module, in order of execution, whose output differs by more than rounding."""
    over = [error for error in pair.errors(step, "forward") if error.over]
    if not over:
        return None
    first = over[0]
    finding = Finding(
        check="probe.forward",
        outcome="drift",
        metric=f"relative error of {first.reference.name or 'the model'}'s output at step {step}",
        observed=first.error if math.isfinite(first.error) else None,
        limit=first.finite_limit,
        detail=f"{len(over)} modules over their limits" + _who(first),
    )
    return Mismatch(
        rung="forward",
        at=Divergence(stage="forward", step=step, at=first.reference.name),
        findings=(finding,),
        suspicions=suspicions(pair, step, first),
    )


def suspicions(pair: Pair, step: int, first: TapError) -> tuple[Suspicion, ...]:
    """What may have changed a module's output, most likely first."""
    name, kind = first.reference.name, first.reference.kind
    error = f"relative error {first.error:.3g}, limit {first.limit:.3g}"
    module = _module_lines(pair, name)
    operator = Suspicion(
        "operator", f"{kind} {name} computes something else", (error, *module, *_agrees_with_itself(first)), (name,)
    )
    found = [operator]
    signs = precision_signs(pair)
    if owes_to_rounding(first) or _product_lost_bits(pair, kind) or (signs and not module and None in first.own):
        why = f"{kind} {name} computes with fewer bits"
        found.insert(0, Suspicion("precision", why, (error, *signs, *_own(first)), (name,)))
    else:
        found.append(Suspicion("precision", f"{kind} {name} may compute with fewer bits", (error,), (name,)))
    if _draws(pair, step, kind):
        why = f"{kind} {name} draws random numbers that the reference does not draw, or draws others"
        found.insert(0, Suspicion("rng", why, (error, *_drawn(pair, step)), (name,)))
    elif _other_tree(pair):
        why = "the model is made of other modules"
        found.insert(0, Suspicion("model.architecture", why, _other_tree(pair), (name,)))
    return tuple(found)


def forward_numbers(pair: Pair, step: int) -> Mismatch | None:
    """Where no module was sketched: the loss by its definition, from the logits, tells whether they moved."""
    left, right = pair.common[step]
    if left.logits_sha256 == right.logits_sha256:
        return None
    gap, limit = relative(left.loss_reference, right.loss_reference), pair.loss_limit(step)
    if gap <= limit:
        return None
    finding = Finding(
        check="probe.forward",
        outcome="drift",
        metric=f"relative difference of the loss by its definition at step {step}",
        observed=gap if math.isfinite(gap) else None,
        limit=limit,
    )
    evidence = (f"the loss of its logits is off by {gap:.3g}, limit {limit:.3g}",)
    found = [Suspicion("operator", f"the model puts out something else at step {step}", evidence)]
    if _draws(pair, step, ""):
        found.insert(0, Suspicion("rng", f"the model draws random numbers at step {step}", _drawn(pair, step)))
    return Mismatch("forward", Divergence(stage="forward", step=step, at="logits"), (finding,), tuple(found))


def precision_signs(pair: Pair) -> tuple[str, ...]:
    """What the fingerprints measured of the bits in use, where they differ."""
    left, right = pair.reference.record.fingerprint, pair.candidate.record.fingerprint
    lines = [
        f"{name} keeps {right.mantissa_bits[name]} bits of mantissa in place of {bits}"
        for name, bits in left.mantissa_bits.items()
        if abs(right.mantissa_bits.get(name, bits) - bits) >= _FEWER_BITS
    ]
    lines += [
        f"{name} is {right.numerics[name]} in place of {value}"
        for name, value in left.numerics.items()
        if right.numerics.get(name, value) != value and any(word in name for word in _PRECISION_WORDS)
    ]
    return tuple(lines)


_PRECISION_WORDS = ("precision", "tf32", "reduced", "autocast", "default_dtype", "matmul")


def _product_lost_bits(pair: Pair, kind: str) -> bool:
    """Whether matrix products were measured to keep fewer bits, and this module is one.

    That holds also where a run agrees with its own fp64 run: what rounds every product rounds fp64's too.
    """
    left, right = (one.record.fingerprint.mantissa_bits.get("linear") for one in (pair.reference, pair.candidate))
    return kind.startswith("Linear") and left is not None and right is not None and abs(left - right) >= _FEWER_BITS


def owes_to_rounding(tap: TapError) -> bool:
    """Whether one run is far from its own fp64 run, and the other is not: a matter of bits, not of formula."""
    ours, theirs = tap.own
    if ours is None or theirs is None:
        return False
    return max(ours, theirs) >= _OWN_SHARE * tap.error > 0 and max(ours, theirs) > tap.limit


def _agrees_with_itself(tap: TapError) -> tuple[str, ...]:
    if None in tap.own or owes_to_rounding(tap):
        return ()
    return ("each run agrees with its own fp64 run: the formula differs, not the rounding",)


def _own(tap: TapError) -> tuple[str, ...]:
    ours, theirs = tap.own
    if ours is None or theirs is None:
        return ()
    return (f"from its own fp64 run the reference is {ours:.3g} away, the candidate {theirs:.3g}",)


def _who(tap: TapError) -> str:
    ours, theirs = tap.own
    if ours is None or theirs is None or not owes_to_rounding(tap):
        return ""
    return "; the candidate is the one that is off" if theirs > ours else "; the reference is the one that is off"


def _module_lines(pair: Pair, name: str) -> tuple[str, ...]:
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return ()
    return tuple(line for at, line in other_modules(left, right) if at == name)


def _other_tree(pair: Pair) -> tuple[str, ...]:
    """Modules that only one side has, by name."""
    left, right = pair.reference.record.evidence.model, pair.candidate.record.evidence.model
    if left is None or right is None:
        return ()
    ours, theirs = {name for name, _ in left.modules}, {name for name, _ in right.modules}
    return tuple(f"module {name} is only in one of them" for name in sorted(ours ^ theirs))[:4]


def _draws(pair: Pair, step: int, kind: str) -> bool:
    left, right = pair.common[step]
    later = step + 1 < len(pair.common) and bool(rng_differs(pair, step + 1)) and not rng_differs(pair, step)
    return later or (left.training_mode != right.training_mode) or "dropout" in kind.lower()


def _drawn(pair: Pair, step: int) -> tuple[str, ...]:
    left, right = pair.common[step]
    lines = []
    if left.training_mode != right.training_mode:
        lines.append(f"the model is in {'training' if right.training_mode else 'evaluation'} mode")
    if step + 1 < len(pair.common) and rng_differs(pair, step + 1):
        lines.append(f"after step {step} the generators' states differ, before it they did not")
    return tuple(lines)
