"""Compare measured mantissa bits with the spec's precision.

Without them, 3 of 216 names and 5 places are lost (ADR 0036).
"""

from __future__ import annotations

from plumbline.judge.mismatches import Mismatch, Suspicion, differs
from plumbline.judge.native import has_equal_lists, kept_bits
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.fact import fact
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import MANTISSA_BITS
from plumbline.schema.verdict import Divergence, Finding

_PRODUCTS = ("linear", "matmul", "bmm")
"""Operators that every precision computes in its own format; autocast leaves others in fp32."""
_FACTORS = (*_PRODUCTS, "linear weights", "attention", "attention queries", "attention keys", "attention scores")
"""Factors of products."""


def different_precision(loaded: LoadedRecord) -> tuple[str, int, int] | None:
    """Return (operation, measured bits, spec bits) if the formats differ, else `None`.

    TF32 is a permission: a device without it keeps the bits of fp32.
    """
    record = loaded.record
    if record.spec.probe is None:
        return None
    precision = record.spec.probe.precision
    wanted, kept = MANTISSA_BITS[precision], record.fingerprint.mantissa_bits
    for name in _PRODUCTS:
        off = kept.get(name, wanted) - wanted
        if off <= -limits.FEWER_BITS or (off >= limits.FEWER_BITS and precision != "tf32"):
            return name, kept[name], wanted
    return None


def precision_findings(pair: Pair) -> list[Finding]:
    """Return a finding if neither side computed in the spec's precision.

    A single side that did not differs from the other, and the walk names the cause.
    """
    found = [different_precision(side) for side in (pair.reference, pair.candidate)]
    if found[0] is None or found[1] is None or pair.reference.record.spec.probe is None:
        return []
    name, kept, wanted = found[1]
    precision = pair.reference.record.spec.probe.precision
    detail = fact("spec-precision.mantissa", name=name, kept=kept, precision=precision, wanted=wanted)
    metric = fact("spec-precision.bits")
    finding = Finding(
        check="record.precision", outcome="invalid", metric=metric, observed=kept, limit=wanted, detail=detail
    )
    return [finding]


def other_format(pair: Pair, part: str) -> Mismatch | None:
    """Return a mismatch if an operator's measured precision differs from the reference.

    TF32 is a permission here, too: a device without it keeps the bits of fp32. Which operations autocast leaves in fp32
    varies by device and by release of torch, but for products.
    """
    left, right = pair.reference.record, pair.candidate.record
    ours, theirs = kept_bits(left, part), kept_bits(right, part)
    is_alike = has_equal_lists(pair.reference.record, pair.candidate.record)
    for name in (name for name in ours if name in theirs):
        bits, is_product = ours[name], name in _FACTORS
        is_permitted = is_product and _permits_tf32(left, part) and min(bits, theirs[name]) >= _TF32
        if abs(theirs[name] - bits) >= limits.FEWER_BITS and (is_product or is_alike) and not is_permitted:
            why = fact("spec-precision.other", name=name, kept=theirs[name], reference=bits, part=part)
            at, metric = Divergence(stage="forward", step=0, at=name), fact("spec-precision.kept", name=name, part=part)
            suspicion = Suspicion("precision", why, (), (name,), shown=True)
            return differs(at, f"{part}.format", metric, suspicion, observed=theirs[name], limit=bits)
    return None


_TF32 = MANTISSA_BITS["tf32"]


def _permits_tf32(record: RunRecord, part: str) -> bool:
    found = getattr(record.spec, part)
    return found is not None and (found.precision == "tf32" or getattr(found, "tf32", False))
