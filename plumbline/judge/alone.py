"""Judgement of one record by itself: what contradicts itself needs no reference."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise

from plumbline.judge.comparison import cause_of
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.captured import captured_notes
from plumbline.judge.rungs.proven import proofs_of, unproven
from plumbline.judge.stated import contradiction
from plumbline.judge.whole import whole
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.captured import CapturedEvidence
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.evidence import ProbeEvidence, Tap
from plumbline.schema.fact import Statement, fact
from plumbline.schema.spec import PARTS
from plumbline.schema.stage import Stage
from plumbline.schema.verdict import CauseCode, Divergence, Finding, Judgement, Note, worst

_HALF = ("bf16", "fp16")
_HALF_NAMES = frozenset({"bfloat16", "float16"})
_LOST_RATE = 1e-2
"""Rate below which half precision may lose the update of every weight."""


def judge_alone(loaded: LoadedRecord) -> Judgement:
    """Return `drift` if the record contradicts itself, and `pass` if what it proves does not.

    A record without any proof is `inconclusive`: nothing in it can contradict itself.
    """
    record = whole(loaded)
    try:
        if problems := record.defects("candidate"):
            return Judgement(verdict=worst([each.outcome for each in problems]), findings=tuple(problems))
        found = list(_distinct(contradictions(loaded)))
    except InvalidInputError as error:
        finding = Finding(check="record.parts", outcome="invalid", metric="record", detail=str(error))
        return Judgement(verdict="invalid", findings=(finding,))
    findings = [finding for mismatch in found for finding in mismatch.findings] or [_proven(loaded)]
    causes = [cause_of(mismatch, ()).replace(sure="confirmed") for mismatch in found]
    return Judgement(
        verdict=worst([finding.outcome for finding in findings]), findings=tuple(findings), causes=tuple(causes),
        first_divergence=found[0].at if found else None,
        notes=tuple(_notes(loaded)),
    )  # fmt: skip


def _notes(loaded: LoadedRecord) -> Iterator[Note]:
    yield from captured_notes(Pair(loaded, loaded))
    for part in PARTS:
        lost = {proof.lost: proof.step for proof in reversed(proofs_of(loaded.record, part)) if proof.lost}
        for why, step in lost.items():
            yield Note(text=fact("proof.lost", part=part, side="record", step=step, why=why))


def contradictions(loaded: LoadedRecord) -> Iterator[Mismatch]:
    """Yield what a record contradicts of itself, in the order of consequence."""
    record = loaded.record
    captured, probe = record.evidence.captured, record.evidence.probe
    if captured is not None and probe is not None:
        yield from _captured(loaded, captured, probe)
    for part in PARTS:
        if getattr(record.evidence, part) is not None:
            if (shown := unproven(record, part)) is not None:
                yield shown
            if (stated := contradiction(loaded, part)) is not None:
                yield stated


def _captured(loaded: LoadedRecord, captured: CapturedEvidence, probe: ProbeEvidence) -> Iterator[Mismatch]:
    """Yield what a captured loop shows to be wrong by itself."""
    values = _weights(loaded, probe)
    is_still = bool(values) and all(len({tap.sha256 for tap in taps}) == 1 for taps in values.values())
    if any(captured.updated) and not captured.num_trained and is_still:
        yield _mismatch("gradient", 0, "parameters", "gradient", fact("captured.nothing-trained"))
    if unheld := _unheld(captured, values):
        more = fact("captured.unheld-more", num=len(unheld) - 1) if len(unheld) > 1 else ""
        why = fact("captured.unheld", name=unheld[0], more=more)
        yield _mismatch("optimizer", 0, unheld[0], "optimizer", why)
    for step, name in captured.stale[:1]:
        yield _mismatch("gradient", step, name, "gradient", fact("captured.stale", name=name, step=step))
    yield from islice(_replicas(captured), 1)
    for found in probe.inconsistent[:1] if captured.replicated else ():
        why = fact(
            "windows.state-processes", side="record", part=found.part, rank=found.rank, step=found.step, training="loop"
        )
        yield _mismatch("optimizer", found.step, found.part, "optimizer", why)
    if (still := _standstill(captured, probe, values)) is not None:
        yield _mismatch("optimizer", still, "weights", "optimizer", fact("captured.standstill", step=still))
    if kind := _beside_autocast(loaded, probe):
        why = fact("captured.no-autocast", kind=kind, precision=loaded.record.spec.precision_of("probe"))
        yield _mismatch("forward", 0, kind, "precision", why)


def _weights(loaded: LoadedRecord, probe: ProbeEvidence) -> dict[str, list[Tap]]:
    """Return the recorded values of each parameter, in the order of steps; buffers are no weights."""
    model = loaded.record.evidence.model
    names = {each.name for each in model.parameters} if model is not None else set()
    found: dict[str, list[Tap]] = {}
    for tap in probe.taps:
        if tap.stage == "optimizer" and tap.name in names:
            found.setdefault(tap.name, []).append(tap)
    return found


def _unheld(captured: CapturedEvidence, values: dict[str, list[Tap]]) -> list[str]:
    """Return parameters with a gradient and without an optimizer, but not those that the loop changes by itself."""
    marks = {name: {tap.sha256 for tap in values.get(name, ())} for name in captured.unheld}
    return [name for name, own in marks.items() if len(own) == 1 and len(values[name]) > 1]


def _replicas(captured: CapturedEvidence) -> Iterator[Mismatch]:
    """Yield each step whose optimizers see different gradients in processes that train one model."""
    # Processes of which one sees the mean of all, or that exchange later, are replicas; to end it may be wanted.
    exchanging = [each.step for each in captured.exchanges if not each.apart]
    for each in captured.exchanges:
        has_mean = each.deviation is not None and each.deviation <= limits.SAME_RATIO
        are_replicas = captured.replicated or each.own_equal or has_mean or each.step < max(exchanging, default=0)
        if each.absent and captured.replicated:
            why = fact("captured.absent", rank=each.absent[0], step=each.step)
            yield _mismatch("gradient", each.step, f"process {each.absent[0]}", "gradient", why)
        elif each.apart and are_replicas:
            rank, name = each.apart[0]
            why = fact("captured.apart", rank=rank, name=name, step=each.step)
            yield _mismatch("gradient", each.step, name, "gradient", why)


def _standstill(captured: CapturedEvidence, probe: ProbeEvidence, values: dict[str, list[Tap]]) -> int | None:
    """Return a recorded step that updated no bit of any weight, though its rate and its gradients are above zero.

    Half precision loses an update by a small rate, and so does an update that its own definition proves.
    """
    proven = {proof.step for proof in probe.proofs if any(each.stage == "optimizer" for each in proof.errors)}
    rates, norms = probe.learning_rates, probe.clipped_norms
    for before, step in pairwise(captured.recorded):
        given = rates[step] if step < len(rates) else 0.0
        rate = max(given if isinstance(given, tuple) else (given,), default=None) or 0.0
        norm = (norms[step] if step < len(norms) else None) or 0.0
        is_updated = step < len(captured.updated) and captured.updated[step]
        pairs = [
            (known[before], known[step]) for taps in values.values()
            if (known := {tap.step: tap for tap in taps}).keys() >= {before, step}
        ]  # fmt: skip
        is_lost = rate < _LOST_RATE and all(first.dtype in _HALF_NAMES for first, *_ in pairs)
        is_due = is_updated and rate > 0 and norm > 0 and step not in proven and not is_lost
        if pairs and is_due and all(first.sha256 == last.sha256 for first, last in pairs):
            return step
    return None


def _beside_autocast(loaded: LoadedRecord, probe: ProbeEvidence) -> str:
    """Return a class of linear layers that all give fp32 under autocast, or "".

    Weights in half precision need no autocast, and one layer alone, such as a head, may be excluded on purpose.
    """
    model = loaded.record.evidence.model
    if model is None:
        return ""
    own = {each.dtype for each in model.parameters}
    matrices = {each.name.rpartition(".")[0] for each in model.parameters if len(each.shape) == 2}
    if loaded.record.spec.precision_of("probe") not in _HALF or own & _HALF_NAMES:
        return ""
    formats: dict[str, dict[str, str]] = {}
    for tap in probe.taps:
        name = tap.name.partition("#")[0]
        is_linear = name in matrices and tap.leaf and not tap.kind.endswith(("Embedding", "Norm"))
        if tap.stage == "forward" and is_linear:
            formats.setdefault(tap.kind, {})[name] = tap.dtype
    alone = (kind for kind, each in formats.items() if len(each) > 1 and set(each.values()) == {"float32"})
    return next(alone, "")


def _distinct(found: Iterator[Mismatch]) -> Iterator[Mismatch]:
    """Yield the first contradiction of each stage and place."""
    seen = set()
    for mismatch in found:
        key = mismatch.at.stage, mismatch.at.at
        if key not in seen:
            seen.add(key)
            yield mismatch


def _proven(loaded: LoadedRecord) -> Finding:
    proofs = [proof for part in PARTS for proof in proofs_of(loaded.record, part)]
    num = sum(len(proof.errors) for proof in proofs)
    detail = fact("alone.proven", num=num, steps=len({proof.step for proof in proofs if proof.errors}))
    if not num:
        return Finding(check="alone.proofs", outcome="inconclusive", metric="proofs", detail=fact("alone.nothing"))
    return Finding(check="alone.proofs", outcome="pass", metric="proofs", observed=num, detail=detail)


def _mismatch(stage: Stage, step: int, at: str, code: CauseCode, why: Statement) -> Mismatch:
    finding = Finding(check=f"alone.{stage}", outcome="drift", metric=fact("stated.by-itself"), detail=why)
    return Mismatch(
        Divergence(stage=stage, step=step, at=at), (finding,), (Suspicion(code, why, shown=True),), "stated"
    )
