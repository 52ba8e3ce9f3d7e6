"""Mismatch: first difference between two runs, and its possible causes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PartName
from plumbline.schema.stage import STAGES, Stage
from plumbline.schema.tolerance import floor_of
from plumbline.schema.verdict import CauseCode, Divergence, Finding

Basis = Literal["given", "computed", "portable", "proven", "stated"]
"""What a mismatch rests on: evidence that no other stage can change, the computation, its windows, a definition
of the record's own step, which an unchanged rerun of equal bits shares, or what the record says of itself."""
CODES: dict[Stage, CauseCode] = {
    "state": "optimizer", "forward": "operator", "loss": "loss", "gradient": "gradient", "clipped": "gradient",
    "schedule": "schedule", "optimizer": "optimizer", "evaluation": "evaluation",
}  # fmt: skip
"""Likeliest cause of a first difference at a stage of the computation."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Possible cause of a mismatch, with evidence and the values to restore."""

    code: CauseCode
    why: Statement
    evidence: tuple[Statement, ...] = ()
    names: tuple[str, ...] = ()
    """Batch fields, modules or parameters that differ."""
    shown: bool = False
    """Whether the record shows the cause directly: no value has to be restored."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Difference between two runs in one kind of evidence, beyond rounding."""

    at: Divergence
    findings: tuple[Finding, ...]
    suspicions: tuple[Suspicion, ...]
    """Most likely first; never empty."""
    basis: Basis = "computed"
    is_certain: bool = False
    """Whether all evidence above has equal bits, native or portable: the cause is at this place, however small."""

    @property
    def stage(self) -> Stage:
        """Return the stage at which the runs differ."""
        return self.at.stage

    @property
    def position(self) -> tuple[float, int]:
        """Return the sort key in computation order: step, then stage."""
        if self.stage in ("architecture", "weights"):
            return (0, STAGES.index(self.stage))
        return (math.inf if self.at.step is None else self.at.step, STAGES.index(self.stage))


def differs(
    at: Divergence, check: str, metric: Statement, *suspicions: Suspicion, basis: Basis = "given", **numbers: Any
) -> Mismatch:  # fmt: skip
    """Return a mismatch with its finding, whose other fields are `numbers`: `observed`, `limit`, `detail`."""
    finding = Finding(check=check, outcome="drift", metric=metric, **numbers)
    return Mismatch(at, (finding,), suspicions, basis)


def of_log(part: PartName, at: Divergence, code: CauseCode, why: Statement, *, shown: bool = False) -> Mismatch:
    """Return the mismatch of one entry in the logs of `speed` or `learn`."""
    metric = fact("log.differs", what=at.at, step=at.step or 0, part=part, whose=fact("log.reference"))
    return differs(at, f"{part}.exact", metric, Suspicion(code, why, shown=shown), observed=at.step, detail=why)


def by_itself(
    code: CauseCode, stage: Stage, step: int | None, at: str, why: Statement, *, shown: bool = False, **numbers: Any
) -> Mismatch:  # fmt: skip
    """Return the mismatch of a record with its spec, its own numbers, or the definition of a step."""
    place, metric = Divergence(stage=stage, step=step, at=at), fact("stated.by-itself")
    suspicion = Suspicion(code, why, shown=shown)
    return differs(place, f"stated.{stage}", metric, suspicion, basis="stated", detail=why, **numbers)


def without(code: CauseCode, mismatch: Mismatch) -> Mismatch:
    """Drop a cause that other evidence rules out, unless none would remain."""
    left = tuple(each for each in mismatch.suspicions if each.code != code)
    return replace(mismatch, suspicions=left) if left else mismatch


def is_same_place(rounded: Mismatch, later: Mismatch) -> bool:
    """Return whether two mismatches share evidence kind and module.

    Other code for an update or a module also rounds differently where its formula gives an equal result.
    """
    return rounded.stage == later.stage and (rounded.stage != "forward" or rounded.at.at == later.at.at)


def is_trace_of_gradient(later: Mismatch) -> bool:
    """Return whether an output differs by rounding only, as after different gradients."""
    error = later.findings[0].observed if later.findings else None
    is_rounding = isinstance(error, float) and error <= floor_of("forward", "fp32")
    return later.stage == "forward" and later.suspicions[0].code == "kernel" and is_rounding


def with_kernel_last(mismatch: Mismatch) -> Mismatch:
    """Move the cause `kernel` behind all others of a mismatch."""
    kernel = tuple(each for each in mismatch.suspicions if each.code == "kernel")
    others = tuple(each for each in mismatch.suspicions if each.code != "kernel")
    return replace(mismatch, suspicions=(*others, *kernel))
