"""Bits of mantissa that matrix products kept, against those of the spec's precision."""

from __future__ import annotations

from plumbline.judge import limits
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Finding

_PRODUCTS = ("linear", "matmul", "bmm")
"""Operators that every precision computes in its own format; autocast leaves others in fp32."""


def different_precision(loaded: LoadedRecord) -> tuple[str, int, int] | None:
    """Return (product, bits kept, bits of the spec) where they differ by a format, else `None`.

    TF32 is a permission: a device without it keeps the bits of fp32.
    """
    record = loaded.record
    if record.spec.probe is None:
        return None
    precision = record.spec.probe.precision
    wanted, kept = limits.MANTISSA_BITS[precision], record.fingerprint.mantissa_bits
    for name in _PRODUCTS:
        off = kept.get(name, wanted) - wanted
        if off <= -limits.FEWER_BITS or (off >= limits.FEWER_BITS and precision != "tf32"):
            return name, kept[name], wanted
    return None


def precision_findings(pair: Pair) -> list[Finding]:
    """Return an invalid finding if no side computed in the spec's precision.

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
