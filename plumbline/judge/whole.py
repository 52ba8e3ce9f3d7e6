"""Completeness of a record: all evidence that its spec requires. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from plumbline.judge.gaps import Gap, counts, lacks
from plumbline.judge.own_distance import OwnDistances
from plumbline.judge.whole_parts import missing_curve, missing_probe
from plumbline.judge.whole_rows import missing_rows, unequal_rows
from plumbline.judge.whole_taps import unequal_taps
from plumbline.records import LoadedRecord
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import LearnEvidence, ProbeEvidence, SpeedEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.portable_parts import speed_places
from plumbline.schema.production import MAX_TRAIL, ProductionEvidence, SpeedTrail
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import SpeedSpec
from plumbline.schema.verdict import Finding, Outcome

_ALWAYS_MARKED = ("input_ids", "labels")
"""Fields of a batch that every task has."""


@dataclass(frozen=True)
class WholeRecord(LoadedRecord):
    """A record whose completeness is checked once, for each role that it may have in a comparison."""

    @cached_property
    def gaps(self) -> tuple[Gap, ...]:
        """Return every required item that the record lacks; raise `InvalidInputError` for an unreadable part.

        A reference's numbers must be finite; a candidate's number that is not is a drift, whose rung names it.
        """
        return tuple(_gaps(self))

    @cached_property
    def own(self) -> OwnDistances:
        """Return the record's distances from its own portable leg, which all its comparisons share."""
        return OwnDistances(self)

    def defects(self, side: str) -> list[Finding]:
        """Return the reasons against judging the record as `side`, whatever it is compared with."""
        if self.record.exit.status != "completed":
            return [_failed(self.record, side)]
        return [*self.missing(side), *_not_finite(self.record, side)]

    def missing(self, side: str) -> list[Finding]:
        """Return a finding for each required item that the record lacks; every side but `reference` is a candidate."""
        role = "reference" if side == "reference" else "candidate"
        return [gap.finding(side) for gap in self.gaps if gap.role in (None, role)]


def whole(loaded: LoadedRecord) -> WholeRecord:
    """Return the record with its completeness, which is checked on first use."""
    if isinstance(loaded, WholeRecord):
        return loaded
    return WholeRecord(loaded.record, loaded.folder, loaded.arrays, loaded.sha256)


def missing_evidence(loaded: LoadedRecord, side: str) -> list[Finding]:
    """Return a finding for each required item that a record lacks."""
    return whole(loaded).missing(side)


def stands_alone(loaded: LoadedRecord) -> bool:
    """Return whether a record is readable, complete, finite and of a completed training."""
    record = whole(loaded)
    try:
        return not record.defects("reference") and not record.defects("candidate")
    except InvalidInputError:
        return False


def _gaps(loaded: LoadedRecord) -> Iterator[Gap]:
    record = loaded.record
    for part in (record.experiment.part,) if record.experiment else record.spec.parts:
        if getattr(record.evidence, part) is None:
            yield lacks(
                f"{part}.evidence",
                "inconclusive",
                "evidence",
                fact("gap.evidence", part=part),
            )
    if record.evidence.probe is not None:
        yield from missing_probe(loaded, record.evidence.probe)
    yield from missing_rows(loaded)
    is_curve = record.experiment is None or record.experiment.part == "learn"
    if is_curve and record.evidence.learn is not None and record.spec.learn is not None:
        yield from missing_curve(record, record.evidence.learn, record.spec.learn)
    yield from _speed(record)
    yield from _selfcheck(record)


def _speed(record: RunRecord) -> Iterator[Gap]:
    speed = record.evidence.speed
    if speed is None or record.spec.speed is None:
        return
    if speed.steps != record.spec.speed.steps:
        yield counts("speed.steps", fact("gap.measured-steps"), speed.steps, record.spec.speed.steps)
    elif speed.wall_seconds is None:
        text = fact("gap.wall-time")
        yield lacks("speed.wall", "inconclusive", fact("gap.wall-time-name"), text)
    is_whole = record.experiment is None
    if is_whole and speed.trail is None:
        yield lacks("speed.trail", "inconclusive", "trail", fact("gap.trail"))
    elif speed.trail is not None and speed.steps == record.spec.speed.steps:
        yield from _trail(speed.trail, min(speed.warmup_steps + speed.steps, MAX_TRAIL))
    if is_whole and record.spec.speed.checks:
        if speed.production is None or not (speed.production.lost or _is_checked(speed.production, record.spec.speed)):
            yield lacks("production.evidence", "inconclusive", "checks", fact("gap.production"))
        ended = speed.legs is not None and (speed.legs.lost or speed.legs.unportable)
        places = {window.at for window in speed.legs.legs} if speed.legs is not None else set()
        if not ended and not {*speed_places(record.spec)} <= places:
            yield lacks("speed.legs", "inconclusive", fact("gap.legs"), fact("gap.no-legs", part="speed"))


def _is_checked(checks: ProductionEvidence, spec: SpeedSpec) -> bool:
    """Return whether all checks of these settings ran; shards have no kernels of a compiler, or of flash-attn."""
    is_closed = spec.compile or spec.attention == "flash_attention_2"
    has_kernels = bool(checks.kernels) or not is_closed or spec.distributed == "fsdp"
    return bool(checks.formula) and checks.repeated is not None and has_kernels


def _trail(trail: SpeedTrail, num_steps: int) -> Iterator[Gap]:
    """Yield a gap for the first list of the trail without one entry a step; the gate compares what both have."""
    marks = dict.fromkeys(_ALWAYS_MARKED, ()) | trail.marks
    lists = {"num_rows": trail.num_rows, "losses": trail.losses, "learning_rates": trail.learning_rates, **marks}
    for name, values in lists.items():
        if len(values) != num_steps:
            yield counts("speed.trail", fact("gap.trail-steps", name=name), len(values), num_steps)
            return


def _selfcheck(record: RunRecord) -> Iterator[Gap]:
    """Yield a gap if a round's training lacks its selfcheck; only an ordered training has a nonce."""
    probe = record.spec.probe
    if record.experiment is not None or probe is None:
        return
    if record.nonce and probe.portable_steps and record.evidence.selfcheck is None:
        text = fact("gap.selfcheck")
        yield lacks("selfcheck.evidence", "inconclusive", "selfcheck", text)


def _not_finite(record: RunRecord, side: str) -> Iterator[Finding]:
    probe, learn = record.evidence.probe, record.evidence.learn
    losses = [(step.step, step.loss) for step in probe.steps] if probe is not None else []
    missing = next((step for step, loss in losses if loss is None or not math.isfinite(loss)), None)
    if missing is not None:
        detail = fact("whole.not-finite", side=side)
        yield Finding(check="probe.loss", outcome="invalid", metric=fact("whole.loss-at", step=missing), detail=detail)
    if learn is not None and any(loss is None for loss in learn.losses):
        detail = fact("whole.loss-not-finite", side=side)
        yield Finding(check="learn.loss", outcome="invalid", metric="loss", detail=detail)


def _failed(record: RunRecord, side: str) -> Finding:
    outcome: Outcome = "inconclusive" if record.exit.is_infrastructure else "invalid"
    part, step, message = record.exit.part, record.exit.step, record.exit.message or record.exit.code
    where: Statement = fact("whole.in-part", part=part) if part else ""
    if step:
        where = fact("whole.in-step-of-part", part=part, step=step) if part else fact("whole.in-step", step=step)
    detail = fact("whole.failed", side=side, where=where, message=message)
    return Finding(
        check="record.exit", outcome=outcome, metric="exit", observed=record.exit.code or record.exit.status,
        limit="completed", detail=detail,
    )  # fmt: skip


def unequal_evidence(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[tuple[str, Finding]]:
    """Yield (side, finding) for each item that only one of two records has.

    The side that lacks it is `reference`, `candidate`, or `either` if the records do not show which one.
    """
    left, right = reference.record.evidence, candidate.record.evidence
    yield from unequal_taps(left, right)
    yield from unequal_rows(reference, candidate)
    if left.learn and right.learn and _lacks_legs(left.learn, right.learn):
        gap = lacks("learn.legs", "inconclusive", fact("gap.legs"), fact("gap.no-legs", part="learn"))
        yield "candidate", gap.finding("candidate")
    checked = [_named_checks(each.speed) for each in (left, right)]
    lost = right.speed.production.lost if right.speed and right.speed.production else ""
    if right.speed and not lost and not checked[0] <= checked[1]:
        gap = lacks("production.evidence", "inconclusive", "checks", fact("gap.checks"))
        yield "candidate", gap.finding("candidate")
    for part in ("probe", "learn") if lost else ("probe", "speed", "learn"):
        proven = [len(found.proofs) if (found := getattr(each, part)) else 0 for each in (left, right)]
        stages = [_proven_stages(getattr(each, part)) for each in (left, right)]
        # Which steps these are, each night draws anew.
        if getattr(right, part) and (proven[1] < proven[0] or not stages[0] <= stages[1]):
            gap = lacks("proof.steps", "inconclusive", fact("gap.proven-steps"), fact("gap.proofs", part=part), *proven)
            yield "candidate", gap.finding("candidate")


def _named_checks(speed: SpeedEvidence | None) -> set[str]:
    """Return what a record's own checks compare, whatever its software calls the modules between."""
    checks = speed.production if speed is not None else None
    if checks is None:
        return set()
    names = {name for name, _ in checks.formula if not name.startswith("forward ") or name == "forward logits"}
    return names | {f"{each.stage} {each.name} of kernels" for each in checks.kernels}


def _proven_stages(found: ProbeEvidence | SpeedEvidence | LearnEvidence | None) -> set[str]:
    """Return what a part's proofs compare, but for `state`, which a proof lists only if it changed.

    Without their forms in fp64 the modules' outputs and gradients prove nothing.
    """
    proofs = found.proofs if found is not None else ()
    return {str(each.stage) for proof in proofs for each in proof.errors} - {"state"}


def _lacks_legs(left: LearnEvidence, right: LearnEvidence) -> bool:
    """Return whether the candidate's curve lacks legs that the reference has, without a recorded reason."""
    known, found = left.legs, right.legs
    if known is None:
        return False
    if found is None:
        return True
    ended = found.unportable or found.lost
    # The places between may depend on the number of rows, whose difference is a finding of its own.
    ends = {0, left.steps - 1} & {leg.at for leg in known.legs}
    return not ended and not ends <= {leg.at for leg in found.legs}
