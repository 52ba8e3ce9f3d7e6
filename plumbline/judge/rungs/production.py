"""Checks of production settings that a training made of itself, behind its measured steps.

They show that its formula is the plain model's, and that compiled code rounds as the modules do, which prove
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from plumbline.judge.mismatches import CODES, Mismatch, Suspicion, by_itself, differs
from plumbline.judge.native import has_compiled
from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.schema.fact import fact
from plumbline.schema.spec import PartName
from plumbline.schema.stage import PROVEN, Stage
from plumbline.schema.tolerance import floor_of, kernel_limits
from plumbline.schema.verdict import Divergence, Finding, Note


@dataclass(frozen=True, slots=True)
class Checked:
    """Distance of one tensor from fp64, with its rounding limit."""

    stage: Stage
    name: str
    error: float | None
    limit: float
    is_compiled: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether the distance exceeds its limit or is not finite."""
        return self.error is None or not self.error <= self.limit


def lost_checks(side: LoadedRecord, part: PartName) -> str:
    """Return why a part's own checks were not made, or ""."""
    checks = side.record.evidence.production if part == "speed" else None
    return checks.lost if checks is not None else ""


def checked(side: LoadedRecord) -> tuple[Checked, ...]:
    """Return all tensors that a training compared with the plain model in fp64."""
    checks = side.record.evidence.production
    if checks is None:
        return ()
    named = [(*key.partition(" ")[::2], error) for key, error in checks.formula]
    known: dict[str, Stage] = {stage: stage for stage in PROVEN}
    stages = [(known.get(stage, "forward"), name, error) for stage, name, error in named]
    return (
        *(Checked(stage, name, error, floor_of(stage, "fp32")) for stage, name, error in stages),
        *(Checked(each.stage, each.name, each.error, most, True) for each, most in kernel_limits(checks.kernels)),
    )


def own_formula(side: LoadedRecord, _part: PartName) -> Mismatch | None:
    """Return a tensor of `speed` that is not what the plain model computes."""
    found = next((each for each in checked(side) if each.is_over), None)
    if found is None:
        return None
    stage, name = found.stage, found.name
    why = fact("production.formula", name=name, stage=stage)
    if found.is_compiled:
        why = fact("production.compiled", name=name, stage=stage)
    return by_itself(CODES[stage], stage, None, name, why, shown=True, observed=found.error, limit=found.limit)


def unsteady(pair: Pair) -> Mismatch | None:
    """Return a mismatch if only the candidate's kernels are non-deterministic.

    On a GPU and in compiled code, sums of gradients by atomic additions need not repeat themselves.
    """
    left, right = pair.reference.record.evidence.production, pair.candidate.record.evidence.production
    record = pair.candidate.record
    if left is None or right is None or record.fingerprint.gpus or has_compiled(record, "speed"):
        return None
    if not left.repeated or right.repeated is not False:
        return None
    stage: Stage = "loss" if right.unsteady == "loss" else "gradient"
    at, name = Divergence(stage=stage, at=right.unsteady), right.unsteady
    suspicion = Suspicion("nondeterminism", fact("production.unsteady", name=name), shown=True)
    return differs(at, "production.repeated", fact("production.repetition"), suspicion, observed=name)


def production_findings(pair: Pair) -> Iterator[Finding]:
    """Yield the proof of the candidate's own checks."""
    record, tensors = pair.candidate.record, checked(pair.candidate)
    spec, checks = record.spec.speed, record.evidence.production
    if spec is None or checks is None or not checks.formula or checks.lost:
        return
    worst = max(tensors, key=lambda each: (each.error or 0.0) / each.limit)
    is_closed = bool(checks.kernels)  # of shards, one process checks the formula alone
    settings = fact(
        "production.settings", precision=spec.precision,
        attention=spec.attention if is_closed or spec.attention == "eager" else "sdpa",
        compiled="compiled" if spec.compile and is_closed else "not compiled",
        fused="fused" if spec.fused_optimizer else "unfused",
    )  # fmt: skip
    yield Finding(
        check="production.equality", outcome="pass", observed=worst.error, limit=worst.limit,
        metric=fact("production.error", stage=worst.stage, name=worst.name),
        detail=fact("production.within", settings=settings, num=len(tensors)),
    )  # fmt: skip


def production_notes(pair: Pair) -> tuple[Note, ...]:
    """Return why the candidate's production settings were not judged, if so."""
    spec = pair.candidate.record.spec
    if spec.speed is None or pair.candidate.record.experiment is not None:
        return ()
    if not spec.speed.checks:
        return (Note(text=fact("production.off")),)
    checks = pair.candidate.record.evidence.production
    return (Note(text=fact("production.lost", why=checks.lost)),) if checks is not None and checks.lost else ()
