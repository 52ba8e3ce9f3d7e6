"""Number formats of a replay's tensors at production settings. Pure."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.judge.number_formats import Beside, first_other, has_equal_lists
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.fact import Statement, fact
from plumbline.schema.production import ProductionEvidence, ProductionTap
from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import production_limit
from plumbline.schema.verdict import Divergence, Finding, Stage

Other = tuple[Stage, str, Beside]
"""Stage and name of a tensor in another format, beside the reference's."""
Comparable = Callable[[Stage, str], bool]
"""Whether tensors of a stage and of a kind of module have the same format on both sides."""


def format_finding(stage: Stage, name: str, beside: Beside) -> tuple[Finding, Statement, Divergence]:
    """Return finding, reason and place of a tensor in another format."""
    at, (limit, observed) = Divergence(stage=stage, step=0, at=name), beside.dtypes
    metric = fact("production.dtype-of", name=name)
    why = fact("production.dtype", name=name, dtype=observed, reference=limit)
    finding = Finding(check="production.format", outcome="drift", metric=metric, observed=observed, limit=limit)
    return finding, why, at


def first_format(
    left: ProductionEvidence, right: ProductionEvidence, precision: Precision, is_comparable: Comparable, *,
    are_due: bool,
) -> Other | None:  # fmt: skip
    """Return the first output or gradient in another format, unless something else differs before it."""
    known = {(tap.stage, tap.name): tap for tap in left.taps}
    found: dict[Stage, dict[str, Beside]] = {"forward": {}, "gradient": {}}
    for tap in right.taps:
        if (ours := known.get((tap.stage, tap.name))) is None:
            continue
        if is_comparable(tap.stage, tap.kind):
            found[tap.stage][tap.name] = _beside(ours, tap, precision, are_due=are_due)
    ordered: list[tuple[tuple[Stage, str], Beside]] = [
        (("forward", name), beside) for name, beside in found["forward"].items()
    ]
    ordered += [(("gradient", name), beside) for name, beside in reversed(found["gradient"].items())]
    other = first_other(ordered)
    return (*other[0], other[1]) if other is not None else None


def _beside(ours: ProductionTap, theirs: ProductionTap, precision: Precision, *, are_due: bool) -> Beside:
    limit = production_limit(theirs.envelope, theirs.stage, precision)
    differs = is_over(theirs, precision) or (are_due and theirs.sha256 != ours.sha256)
    return Beside(theirs.error, limit, differs, (ours.dtype, theirs.dtype))


def is_comparable(pair: Pair, stage: Stage, kind: str) -> bool:
    """Return whether both sides give a tensor the same format, whichever kernels compute it."""
    if stage == "forward" and kind == "Linear":
        return True
    compiled = [is_compiled(side) for side in (pair.reference, pair.candidate)]
    is_fused = any(compiled) and not (all(compiled) and stage == "forward")
    return has_equal_lists(pair.reference, pair.candidate) and not is_fused


def is_compiled(side: LoadedRecord) -> bool:
    """Return whether a record's `speed` trained a compiled model."""
    speed, spec = side.record.evidence.speed, side.record.spec.speed
    asked = spec is not None and spec.compile
    return bool(speed.trail.settings.get("compiled", asked) if speed is not None and speed.trail is not None else asked)


def is_over(tap: ProductionTap, precision: Precision) -> bool:
    """Return whether a tensor's error is beyond what the precision explains."""
    limit = production_limit(tap.envelope, tap.stage, precision)
    return tap.error is None or not tap.error <= limit
