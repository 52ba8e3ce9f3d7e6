"""Experiments for each suspected cause, cheapest first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from plumbline.judge.intervention import CAPTURED, Intervention, Source, forward_of, only_trained
from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.captured import captured
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.experiment import Capture, Replay
from plumbline.schema.stage import Stage


def interventions(
    mismatch: Mismatch, suspicion: Suspicion, reference: LoadedRecord, trained: frozenset[str]
) -> tuple[Intervention, ...]:
    """Return the experiments that test `suspicion`, cheapest first.

    `trained` holds the parameters that got a gradient on both sides.
    """
    probe = reference.record.evidence.probe
    if probe is None:
        return ()
    last = probe.num_steps
    step = min(mismatch.at.step or 0, last - 1)
    steps = min(step + 1 + limits.STEPS_AFTER, last)
    if suspicion.shown or _unread(mismatch):
        return (Intervention("no restored value, as the record shows the difference itself", steps, "observed"),)
    is_loop = captured(reference.record.spec)
    if suspicion.code in ("kernel", "precision") and not is_loop:
        return (_exact(probe),) if suspicion.code == "kernel" else _precision(mismatch, probe, step)
    if suspicion.code == "gradient" and mismatch.stage == "optimizer":
        return tuple(only_trained(way, trained, reference) for way in _gradients("clipped", steps))
    if is_loop:
        return tuple(only_trained(way, trained, reference) for way in _of_loop(mismatch, probe))
    ways = _ways(mismatch, suspicion, reference, probe)
    return tuple(_over(last, suspicion, only_trained(way, trained, reference)) for way in ways)


def _ways(
    mismatch: Mismatch, suspicion: Suspicion, reference: LoadedRecord, probe: ProbeEvidence
) -> tuple[Intervention, ...]:
    """Return the ways to restore the reference's value for one evidence kind."""
    steps = steps_of(mismatch, probe.num_steps)
    match mismatch.stage:
        case "data" | "batch":
            ways = _batch(mismatch, suspicion, reference, steps)
        case "weights":
            ways = _captured("the reference's initial weights", "weights", (0,), steps, "weights")
        case "rng":
            ways = _rng(mismatch, reference, steps)
        case "forward":
            ways = _forward(mismatch, probe)
        case "gradient" | "clipped" as stage:
            ways = _gradients(stage, steps)
        case "optimizer":
            ways = _optimizer(mismatch, steps)
        case stage:
            ways = (_defined(stage, steps),)
    return ways


_OF_LOOP: dict[str, tuple[Stage, str]] = {
    "batch": ("batch", "the reference's float inputs"),
    "schedule": ("schedule", "the reference's learning rates"),
    "optimizer": ("optimizer", "the reference's updated weights"),
}
"""Values of a loop that no definition gives: the reference keeps them at each step."""


def _of_loop(mismatch: Mismatch, probe: ProbeEvidence) -> tuple[Intervention, ...]:
    """Return the ways to restore a value in a loop that is not our own: no fp64, and no spec's definition."""
    steps = steps_of(mismatch, probe.num_steps)
    match mismatch.stage:
        case "weights":
            return _captured("the reference's initial weights", "weights", (0,), steps, "weights")
        case "rng":
            start = _captured("the reference's generators at the start", "rng", (0,), steps)
            always = _captured("the reference's generators at every step", "rng", range(steps), steps, "rng")
            return always if mismatch.at.step else (*start, *always)
        case "forward":
            return _forward(mismatch, probe)
        case "gradient" | "clipped" as stage:
            return _gradients(stage, steps)
        case "batch" | "schedule" | "optimizer" as stage:
            kept, description = _OF_LOOP[stage]
            return _captured(description, kept, range(steps), steps, stage)
    return ()


_DEFINITIONS: dict[str, tuple[Stage, str]] = {
    "loss": ("loss", "the loss by its definition"),
    "optimizer": ("optimizer", "the update by AdamW's definition, with the spec's settings"),
    "schedule": ("schedule", "the learning rates by the schedule's definition"),
    "evaluation": ("evaluation", "the evaluation by its definition"),
    "rng": ("dropout", "the dropout that the spec asks for"),
}
"""Replays that need no tensors of the reference: by stage in a probe, by cause in a curve."""
_OF_CURVE = frozenset({"schedule", "rng", "evaluation"})
"""Causes that a curve's record shows."""


def curve_interventions(suspicion: Suspicion, steps: int) -> tuple[Intervention, ...]:
    """Return the experiment that tests a suspected cause of a learning curve, if any."""
    return (_defined(suspicion.code, steps),) if suspicion.code in _OF_CURVE else ()


def _defined(name: str, steps: int) -> Intervention:
    """Return an experiment that recomputes a value by its mathematical definition."""
    stage, description = _DEFINITIONS[name]
    return Intervention(description, steps, replays=(Replay(stage=stage),), by_definition=stage != "schedule")


_KEPT = frozenset({"batch", "schedule", "rng"})
"""Replays whose values are known exactly for every step, from each record or from the spec."""


def _over(last: int, suspicion: Suspicion, way: Intervention) -> Intervention:
    """Extend an experiment to the whole probe, unless captures limit it.

    The evaluation reads its own rows: neither an order of batches, a generator's state nor a learning rate reaches it,
    but wrong texts, tokens and labels may.
    """
    if way.method != "replay" or way.steps >= last or any(replay.stage not in _KEPT for replay in way.replays):
        return way
    draws = all(replay.stage == "rng" for replay in way.replays)
    rungs = way.rungs if draws or suspicion.code in ("data.order", "schedule") else way.rungs | {"evaluation"}
    return replace(way, steps=last, rungs=rungs)


def steps_of(mismatch: Mismatch, last: int) -> int:
    """Return how many steps an experiment on this mismatch must train."""
    return last if mismatch.stage == "evaluation" else min((mismatch.at.step or 0) + 1 + limits.STEPS_AFTER, last)


def _unread(mismatch: Mismatch) -> bool:
    """Return whether no batch of the probe read the different dataset rows."""
    return mismatch.stage == "data" and mismatch.at.step is None


def _precision(mismatch: Mismatch, probe: ProbeEvidence, step: int) -> tuple[Intervention, ...]:
    settings = Intervention("every precision setting", step + 1, replays=(Replay(stage="settings"),))
    exact = _exact(probe)
    observed = Intervention("no restored value, as the record shows the number format itself", step + 1, "observed")
    shown = mismatch.findings[0].check == "probe.dtype" or mismatch.stage == "weights"
    return (settings, exact, observed) if shown else (settings, exact)


def _exact(probe: ProbeEvidence) -> Intervention:
    # Over the whole probe: a difference that stays without rounding is a second cause, which the rounding hid.
    return Intervention("fp64 on both sides", probe.num_steps, "exact")


def _batch(mismatch: Mismatch, suspicion: Suspicion, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    if not suspicion.names:  # the probe's batches are equal: no experiment restores rows that only a later part reads
        return ()
    part = "batches.safetensors"
    replay = Replay(stage="batch", fields=suspicion.names, source="reference-batches.safetensors")
    source = Source("reference-batches.safetensors", reference.record.record_id, part)
    rungs = frozenset({"data", "batch", "evaluation"}) if mismatch.stage == "data" else frozenset({"batch"})
    description = f"the reference's {', '.join(suspicion.names)}"
    return (Intervention(description, steps, replays=(replay,), sources=(source,), rungs=rungs),)


def _captured(description: str, stage: Stage, at: Iterable[int], steps: int, *imposed: str) -> tuple[Intervention, ...]:
    """Return an experiment that imposes the reference's captured tensors at steps `at`.

    The rungs in `imposed` are no evidence afterwards.
    """
    way = Intervention(
        description,
        steps,
        replays=tuple(Replay(stage=stage, step=step, source=CAPTURED) for step in at),
        captures=tuple(Capture(stage=stage, names=(), step=step) for step in at),
        rungs=frozenset(imposed),
    )
    return (way,)


def _gradients(stage: Literal["gradient", "clipped"], steps: int) -> tuple[Intervention, ...]:
    description = "the reference's gradients" + (" after clipping" if stage == "clipped" else "")
    return _captured(description, stage, range(steps), steps, stage)


def _rng(mismatch: Mismatch, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    source = Source("reference-state.safetensors", reference.record.record_id, "state.safetensors")
    start, always = (
        Intervention(f"the reference's generators at {when}", steps, replays=(replay,), sources=(source,), rungs=rungs)
        for when, replay, rungs in (
            ("the start", Replay(stage="rng", step=0, source=source.key), frozenset[str]()),
            ("every step", Replay(stage="rng", source=source.key), frozenset({"rng"})),
        )
    )
    # Some code draws or seeds within the steps: the generators must be restored at each step.
    return (always,) if mismatch.at.step else (start, always)


def _forward(mismatch: Mismatch, probe: ProbeEvidence) -> tuple[Intervention, ...]:
    taps, name = probe.taps, mismatch.at.at
    kind = next((tap.kind for tap in taps if tap.stage == "forward" and tap.name == name), "")
    return (forward_of(taps, mismatch.at.step or 0, kind),) if kind else ()


def _optimizer(mismatch: Mismatch, steps: int) -> tuple[Intervention, ...]:
    way = _defined("optimizer", steps)
    if mismatch.findings[0].check == "probe.optimizer":
        return (replace(way, rungs=frozenset({"settings"})),)
    return (way,)
