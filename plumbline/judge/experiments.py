"""How each suspicion is put to the test: what has to be put back, and what has to be captured for it first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from plumbline.judge.mismatches import Mismatch, Suspicion
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import ProbeEvidence, Tap
from plumbline.schema.experiment import Capture, Replay
from plumbline.schema.experiment import Rung as ReplayRung

__all__ = ["CAPTURED", "Intervention", "Kept", "Source", "forward_of", "interventions", "only_trained"]

Method = Literal["replay", "exact", "observed", "locate"]


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a record that goes into a bundle under the name `key`."""

    key: str
    record_id: str
    part: str


@dataclass(frozen=True, slots=True)
class Intervention:
    """One way to put a suspect back, over the probe's first `steps`."""

    words: str
    steps: int
    method: Method = "replay"
    replays: tuple[Replay, ...] = ()
    sources: tuple[Source, ...] = ()
    captures: tuple[Capture, ...] = ()
    """Taken from the reference first; replays of source `capture.safetensors` read them."""
    rungs: frozenset[str] = field(default_factory=frozenset)
    """Equal by construction afterwards, and so no evidence."""
    by_definition: bool = False
    """Imposed by its definition, not by the reference's bits: equal up to rounding only."""
    kinds: tuple[str, ...] = ()
    """Of the modules whose outputs are imposed."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A suspect that stays put back while later ones are tested; its captures lie in the record of this id."""

    way: Intervention
    captured: str

    @property
    def _key(self) -> str:
        return f"capture-{self.captured}.safetensors"[:120]

    def replays(self, steps: int) -> Iterator[Replay]:
        """What it imposes within the first `steps`."""
        for one in self.way.replays:
            if one.step is None or one.step < steps:
                yield one.replace(source=self._key) if one.source == CAPTURED else one

    def sources(self) -> Iterator[Source]:
        """The parts of records that its replays read."""
        yield from self.way.sources
        if self.captured:
            yield Source(self._key, self.captured, CAPTURED)


CAPTURED = "capture.safetensors"
_AFTER = 2
"""Steps looked at past the first divergence, so that a snap-back shows in the weights and in what follows."""


def interventions(
    one: Mismatch, suspicion: Suspicion, reference: LoadedRecord, trained: frozenset[str]
) -> tuple[Intervention, ...]:
    """The ways to test `suspicion`, the cheapest first; `trained` parameters got a gradient on both sides."""
    probe = reference.record.evidence.probe
    if probe is None:
        return ()
    last = len(probe.steps)
    step = min(one.at.step or 0, last - 1)
    steps = min(step + 1 + _AFTER, last)
    if suspicion.shown or _unread(one):
        return (Intervention("nothing: the record shows the difference itself", steps, "observed"),)
    if suspicion.code == "kernel":
        return (_exact(probe),)
    if suspicion.code == "precision":
        return _precision(one, suspicion, probe, step)
    makers = {
        "data": _batch,
        "batch": _batch,
        "weights": _weights,
        "rng": _rng,
        "forward": _forward,
        "loss": _loss,
        "gradient": _gradients,
        "clipped": _gradients,
        "optimizer": _optimizer,
        "schedule": _schedule,
        "evaluation": _evaluation,
    }
    chosen = last if one.rung == "evaluation" else steps
    ways = makers[one.rung](one, suspicion, reference, chosen)
    return tuple(only_trained(way, trained, reference) for way in ways)


def only_trained(way: Intervention, trained: frozenset[str], reference: LoadedRecord) -> Intervention:
    """The same, with gradients imposed where there are any: elsewhere the reference's update cannot come about."""
    names = tuple(sorted(trained))
    taps = reference.record.evidence.probe.taps if reference.record.evidence.probe else ()
    if way.kinds and {tap.name for tap in taps if tap.stage == "gradient"} - trained:
        way = replace(way, rungs=way.rungs | {"clipped", "optimizer"})
    replays = tuple(
        one.replace(fields=names) if one.rung in ("gradient", "clipped") and names else one for one in way.replays
    )
    return replace(way, replays=replays)


def _unread(one: Mismatch) -> bool:
    """A difference of the dataset that no batch of the probe shows."""
    return one.rung == "data" and one.at.step is None and one.at.at != "tokenizer"


def _precision(one: Mismatch, suspicion: Suspicion, probe: ProbeEvidence, step: int) -> tuple[Intervention, ...]:
    settings = Intervention("every precision setting", step + 1, replays=(Replay(rung="settings"),))
    exact = _exact(probe)
    observed = Intervention("nothing: the record shows the number format itself", step + 1, "observed")
    shown = one.findings[0].check == "probe.dtype" or one.rung == "weights"
    del suspicion
    return (settings, exact, observed) if shown else (settings, exact)


def _exact(probe: ProbeEvidence) -> Intervention:
    # Over the whole probe: what is left without any rounding is another cause, which the rounding hid.
    return Intervention("fp64 on both sides", len(probe.steps), "exact")


def _batch(one: Mismatch, suspicion: Suspicion, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    part = "batches.safetensors"
    replay = Replay(rung="batch", fields=suspicion.names, source="reference-batches.safetensors")
    source = Source("reference-batches.safetensors", reference.record.record_id, part)
    rungs = frozenset({"data", "batch", "evaluation"}) if one.rung == "data" else frozenset({"batch"})
    words = f"the reference's {', '.join(suspicion.names)}"
    return (Intervention(words, steps, replays=(replay,), sources=(source,), rungs=rungs),)


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


def _rng(one: Mismatch, _suspicion: Suspicion, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    source = Source("reference-state.safetensors", reference.record.record_id, "state.safetensors")
    start = Intervention(
        "the reference's generators at the start",
        steps,
        replays=(Replay(rung="rng", step=0, source=source.key),),
        sources=(source,),
    )
    # Something draws or seeds within the steps: what it did to the generators has to be undone at each.
    always = Intervention(
        "the reference's generators at every step",
        steps,
        replays=(Replay(rung="rng", source=source.key),),
        sources=(source,),
        rungs=frozenset({"rng"}),
    )
    return (always,) if one.at.step else (start, always)


def _same_kind(taps: tuple[Tap, ...], step: int, kinds: tuple[str, ...]) -> tuple[str, ...]:
    """The modules of these classes that were tapped at `step`."""
    return tuple(tap.name for tap in taps if tap.step == step and tap.stage == "forward" and tap.kind in kinds)


def _forward(one: Mismatch, _suspicion: Suspicion, reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    probe = reference.record.evidence.probe
    step = one.at.step or 0
    taps = probe.taps if probe else ()
    kind = next((tap.kind for tap in taps if tap.stage == "forward" and tap.name == one.at.at), "")
    if not kind:
        return (Intervention(f"nothing: where is step {step} off, module by module?", step + 1, "locate"),)
    return (forward_of(taps, step, (kind,)),) if steps else ()


def forward_of(taps: tuple[Tap, ...], step: int, kinds: tuple[str, ...]) -> Intervention:
    """Impose the outputs of all modules of `kinds` at `step`, and the gradients that went back through them."""
    first = min((tap.step for tap in taps), default=0)
    names = _same_kind(taps, step, kinds) or _same_kind(taps, first, kinds)
    captures = (Capture(rung="forward", names=names, step=step), Capture(rung="gradient", names=(), step=step))
    rungs: tuple[ReplayRung, ...] = ("forward", "gradient")
    return Intervention(
        f"the reference's outputs of every {' and '.join(kinds)} at step {step}",
        step + 1,
        replays=tuple(Replay(rung=rung, step=step, source=CAPTURED) for rung in rungs),
        captures=captures,
        rungs=frozenset({"gradient"}),
        kinds=kinds,
    )


def _loss(_one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    return (Intervention("the loss by its definition", steps, replays=(Replay(rung="loss"),), by_definition=True),)


def _gradients(one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    rung: ReplayRung = "clipped" if one.rung == "clipped" else "gradient"
    words = "the reference's gradients" + (" after clipping" if rung == "clipped" else "")
    return (
        Intervention(
            words,
            steps,
            replays=tuple(Replay(rung=rung, step=step, source=CAPTURED) for step in range(steps)),
            captures=tuple(Capture(rung=rung, names=(), step=step) for step in range(steps)),
            rungs=frozenset({one.rung}),
        ),
    )


def _optimizer(one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    rungs = frozenset({"settings"}) if one.findings[0].check == "probe.optimizer" else frozenset()
    words = "the update by AdamW's definition, with the spec's settings"
    replay = Replay(rung="optimizer")
    return (Intervention(words, steps, replays=(replay,), rungs=rungs, by_definition=True),)


def _schedule(_one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int) -> tuple[Intervention, ...]:
    return (Intervention("the learning rates by the schedule's definition", steps, replays=(Replay(rung="schedule"),)),)


def _evaluation(
    _one: Mismatch, _suspicion: Suspicion, _reference: LoadedRecord, steps: int
) -> tuple[Intervention, ...]:
    words = "the evaluation by its definition"
    return (Intervention(words, steps, replays=(Replay(rung="evaluation"),), by_definition=True),)
