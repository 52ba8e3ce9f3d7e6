"""Number formats (dtypes) of logits, loss, outputs and gradients."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.judge.mismatches import Mismatch, Suspicion, differs
from plumbline.judge.native import has_equal_lists
from plumbline.judge.pair import Pair, TapError
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Divergence

_AUTOCAST = ("bf16", "fp16")


def _comparable(pair: Pair, step: int) -> Iterator[TapError]:
    """Yield outputs and gradients that must have equal dtypes on both sides.

    Devices and versions differ in the operations that autocast leaves in fp32; no linear layer is among them.
    """
    is_alike = pair.precision not in _AUTOCAST or has_equal_lists(pair.reference.record, pair.candidate.record)
    for each in (*pair.errors(step, "forward"), *pair.errors(step, "gradient")):
        if is_alike or (each.reference.stage == "forward" and each.reference.kind == "Linear"):
            yield each


def formats(pair: Pair, step: int) -> Mismatch | None:
    """Return a mismatch of number formats (dtypes) at `step`."""
    left, right = pair.common[step]
    pairs = [("logits", left.logits_dtype, right.logits_dtype), ("loss", left.loss_dtype, right.loss_dtype)]
    if pair.precision in _AUTOCAST:
        pairs = []
    pairs += [(each.reference.name, each.reference.dtype, each.candidate.dtype) for each in _comparable(pair, step)]
    differing = [(name, ours, theirs) for name, ours, theirs in pairs if ours != theirs]
    if not differing:
        return None
    tapped = [entry for entry in differing if entry[0] not in ("logits", "loss")]
    name, ours, theirs = (tapped or differing)[0]
    at = Divergence(stage="loss" if name == "loss" else "forward", step=step, at=name)
    why = fact("forward.precision", name=name, format=theirs, reference=ours)
    suspicion = Suspicion("precision", why, (), tuple(entry[0] for entry in tapped))
    metric, detail = fact("forward.format", name=name, step=step), fact("forward.formats", num=len(differing))
    return differs(at, "probe.dtype", metric, suspicion, observed=theirs, limit=ours, detail=detail)
