"""Experiments for each suspicion: interventions by code and rung, cheapest first."""

from __future__ import annotations

from dataclasses import replace

from plumbline.judge.intervention import CAPTURED, Intervention, Source, forward_of, only_trained
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.experiment import Capture, Replay
from plumbline.schema.experiment import Rung as ReplayRung


def interventions(
    mismatch: Mismatch, suspicion: Suspicion, reference: LoadedRecord, trained: frozenset[str]
) -> tuple[Intervention, ...]:
    """Return the experiments that test `suspicion`, cheapest first.

    `trained` holds the parameters that got a gradient on both sides.
    """
    probe = reference.record.evidence.probe
    if probe is None:
        return ()
    last = len(probe.steps)
    step = min(mismatch.at.step or 0, last - 1)
    steps = min(step + 1 + limits.STEPS_AFTER, last)
    if suspicion.shown or _unread(mismatch):
        return (Intervention("no restored value, as the record shows the difference itself", steps, "observed"),)
    if suspicion.code == "kernel":
        return (_exact(probe),)
    if suspicion.code == "precision":
        return _precision(mismatch, probe, step)
    if suspicion.code == "gradient" and mismatch.rung == "optimizer":
        ways = _gradients(replace(mismatch, rung="clipped"), suspicion, reference, steps)
        return tuple(only_trained(way, trained, reference) for way in ways)
    makers = {
        "data": _batch,
        "batch": _batch,
        "weights": _weights,
        "state": _state,
        "rng": _rng,
        "forward": _forward,
        "loss": _loss,
        "gradient": _gradients,
        "clipped": _gradients,
        "optimizer": _optimizer,
        "schedule": _schedule,
        "evaluation": _evaluation,
    }
    chosen = steps_of(mismatch, last)
    ways = makers[mismatch.rung](mismatch, suspicion, reference, chosen)
    return tuple(_over(last, suspicion, only_trained(way, trained, reference)) for way in ways)


_KEPT = frozenset({"batch", "schedule", "rng"})
"""Replays whose values are known exactly for every step, from each record or from the spec."""


def _over(last: int, suspicion: Suspicion, way: Intervention) -> Intervention:
    """Extend an experiment to the whole probe, if it needs no captures.

    The evaluation reads its own rows: neither an order of batches, a generator's state nor a learning rate reaches it,
    but wrong texts, tokens and labels may.
    """
    if way.method != "replay" or way.steps >= last or any(replay.rung not in _KEPT for replay in way.replays):
        return way
    draws = all(replay.rung == "rng" for replay in way.replays)
    rungs = way.rungs if draws or suspicion.code in ("data.order", "schedule") else way.rungs | {"evaluation"}
    return replace(way, steps=last, rungs=rungs)


def steps_of(mismatch: Mismatch, last: int) -> int:
    """Return how many steps an experiment on a mismatch trains."""
    return last if mismatch.rung == "evaluation" else min((mismatch.at.step or 0) + 1 + limits.STEPS_AFTER, last)


def _unread(mismatch: Mismatch) -> bool:
    """Return whether a difference of datasets is in no batch of the probe."""
    return mismatch.rung == "data" and mismatch.at.step is None and mismatch.at.at != "tokenizer"


def _precision(mismatch: Mismatch, probe: ProbeEvidence, step: int) -> tuple[Intervention, ...]:
    settings = Intervention("every precision setting", step + 1, replays=(Replay(rung="settings"),))
    exact = _exact(probe)
    observed = Intervention("no restored value, as the record shows the number format itself", step + 1, "observed")
    shown = mismatch.findings[0].check == "probe.dtype" or mismatch.rung == "weights"
    return (settings, exact, observed) if shown else (settings, exact)


def _exact(probe: ProbeEvidence) -> Intervention:
    # Over the whole probe: a difference that stays without rounding is a second cause, which the rounding hid.
    return Intervention("fp64 on both sides", len(probe.steps), "exact")


def _batch(mismatch: Mismatch, suspicion: Suspicion, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    if not suspicion.names:  # the probe's batches are equal: no experiment restores rows that only a later part reads
        return ()
    part = "batches.safetensors"
    replay = Replay(rung="batch", fields=suspicion.names, source="reference-batches.safetensors")
    source = Source("reference-batches.safetensors", reference.record.record_id, part)
    rungs = frozenset({"data", "batch", "evaluation"}) if mismatch.rung == "data" else frozenset({"batch"})
    description = f"the reference's {', '.join(suspicion.names)}"
    return (Intervention(description, steps, replays=(replay,), sources=(source,), rungs=rungs),)


def _weights(_one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    return (
        Intervention(
            "the reference's initial weights",
            steps,
            replays=(Replay(rung="weights", step=0, source=CAPTURED),),
            captures=(Capture(rung="weights", names=(), step=0),),
            rungs=frozenset({"weights"}),
        ),
    )


def _state(mismatch: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    step = mismatch.at.step or 0
    return (
        Intervention(
            f"the reference's weights at the start of step {step}",
            steps,
            replays=(Replay(rung="weights", step=step, source=CAPTURED),),
            captures=(Capture(rung="weights", names=(), step=step),),
            rungs=frozenset({"state"}),
        ),
    )


def _rng(mismatch: Mismatch, _suspicion: Suspicion, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    source = Source("reference-state.safetensors", reference.record.record_id, "state.safetensors")
    start = Intervention(
        "the reference's generators at the start",
        steps,
        replays=(Replay(rung="rng", step=0, source=source.key),),
        sources=(source,),
    )
    # Some code draws or seeds within the steps: the generators must be restored at each step.
    always = Intervention(
        "the reference's generators at every step",
        steps,
        replays=(Replay(rung="rng", source=source.key),),
        sources=(source,),
        rungs=frozenset({"rng"}),
    )
    return (always,) if mismatch.at.step else (start, always)


def _forward(
    mismatch: Mismatch, _suspicion: Suspicion, reference: LoadedRecord, _steps: int
) -> tuple[Intervention, ...]:
    probe = reference.record.evidence.probe
    step = mismatch.at.step or 0
    taps = probe.taps if probe else ()
    kind = next((tap.kind for tap in taps if tap.stage == "forward" and tap.name == mismatch.at.at), "")
    return (forward_of(taps, step, kind),) if kind else ()


def _loss(_one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    return (Intervention("the loss by its definition", steps, replays=(Replay(rung="loss"),), by_definition=True),)


def _gradients(
    mismatch: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int
) -> tuple[Intervention, ...]:
    rung: ReplayRung = "clipped" if mismatch.rung == "clipped" else "gradient"
    description = "the reference's gradients" + (" after clipping" if rung == "clipped" else "")
    return (
        Intervention(
            description,
            steps,
            replays=tuple(Replay(rung=rung, step=step, source=CAPTURED) for step in range(steps)),
            captures=tuple(Capture(rung=rung, names=(), step=step) for step in range(steps)),
            rungs=frozenset({mismatch.rung}),
        ),
    )


def _optimizer(
    mismatch: Mismatch, _suspicion: Suspicion, reference: LoadedRecord, steps: int
) -> tuple[Intervention, ...]:
    rungs = frozenset({"settings"}) if mismatch.findings[0].check == "probe.optimizer" else frozenset()
    description = "the update by AdamW's definition, with the spec's settings"
    replay = Replay(rung="optimizer")
    way = Intervention(description, steps, replays=(replay,), rungs=rungs, by_definition=True)
    trace = reference.record.evidence.trace
    # Before its first step an optimizer has no state; later a checkpoint may lose it.
    return (way,) if trace is None or not trace.first or rungs else (_moments(steps), way)


def _moments(steps: int) -> Intervention:
    return Intervention(
        "the reference's optimizer state",
        steps,
        replays=(Replay(rung="moments", step=0, source=CAPTURED),),
        captures=(Capture(rung="moments", names=(), step=0),),
    )


def _schedule(_one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    return (Intervention("the learning rates by the schedule's definition", steps, replays=(Replay(rung="schedule"),)),)


def _evaluation(
    _one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int
) -> tuple[Intervention, ...]:
    description = "the evaluation by its definition"
    return (Intervention(description, steps, replays=(Replay(rung="evaluation"),), by_definition=True),)
