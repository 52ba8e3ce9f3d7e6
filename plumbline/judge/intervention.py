"""Experiment settings: which reference values to restore, and their source."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Tap
from plumbline.schema.experiment import Capture, Replay
from plumbline.schema.stage import Stage

CAPTURED = "capture.safetensors"

Method = Literal["replay", "exact", "observed"]


@dataclass(frozen=True, slots=True)
class Source:
    """Part of a record that an experiment bundle contains under `key`."""

    key: str
    record_id: str
    part: str


@dataclass(frozen=True, slots=True)
class Intervention:
    """One way to restore a suspect's value for the first `steps` steps."""

    description: str
    steps: int
    method: Method = "replay"
    replays: tuple[Replay, ...] = ()
    sources: tuple[Source, ...] = ()
    captures: tuple[Capture, ...] = ()
    """To capture from the reference first; replays with the source `capture.safetensors` read them."""
    rungs: frozenset[str] = field(default_factory=frozenset)
    """Rungs that are equal by construction afterwards, and so are not evidence."""
    by_definition: bool = False
    """Whether the value follows from its definition instead of the reference's bits: equal up to rounding only."""
    kind: str = ""
    """Class of the modules whose outputs are imposed."""

    def captured_in(self, record_id: str) -> Intervention:
        """Return the intervention that reads tensors captured in a record."""
        key = f"capture-{record_id}.safetensors"
        replays = tuple(replay.replace(source=key) if replay.source == CAPTURED else replay for replay in self.replays)
        return replace(self, replays=replays, sources=(*self.sources, Source(key, record_id, CAPTURED)), captures=())

    def reaching(self, taps: tuple[Tap, ...], steps: int) -> Intervention:
        """Extend imposed module outputs to `steps` steps; requires a new capture."""
        if not self.kind or self.steps >= steps:
            return self
        return forward_of(taps, min(replay.step or 0 for replay in self.replays), self.kind, until=steps)


def forward_of(taps: tuple[Tap, ...], step: int, kind: str, *, until: int | None = None) -> Intervention:
    """Impose the outputs and gradients of all modules of class `kind`.

    At `step` alone, or at all steps from `step` to before `until`.
    """
    first = min((tap.step for tap in taps), default=0)
    names = _same_kind(taps, step, kind) or _same_kind(taps, first, kind)
    steps = range(step, until or step + 1)
    stages: tuple[Stage, ...] = ("forward", "gradient")
    when = f"step {step}" if len(steps) == 1 else f"steps {step} to {steps[-1]}"
    return Intervention(
        f"the reference's outputs of every {kind} at {when}",
        steps[-1] + 1,
        replays=tuple(Replay(stage=stage, step=each, source=CAPTURED) for each in steps for stage in stages),
        captures=tuple(
            Capture(stage=stage, names=names if stage == "forward" else (), step=each)
            for each in steps
            for stage in stages
        ),
        rungs=frozenset({"gradient"}),
        kind=kind,
    )


def _same_kind(taps: tuple[Tap, ...], step: int, kind: str) -> tuple[str, ...]:
    """Return the modules of this class with a recorded output at `step`."""
    return tuple(tap.name for tap in taps if tap.step == step and tap.stage == "forward" and tap.kind == kind)


def only_trained(way: Intervention, trained: frozenset[str], reference: LoadedRecord) -> Intervention:
    """Limit imposed gradients to parameters that both sides train."""
    names = tuple(sorted(trained))
    taps = reference.record.evidence.probe.taps if reference.record.evidence.probe else ()
    if way.kind and {tap.name for tap in taps if tap.stage == "gradient"} - trained:
        way = replace(way, rungs=way.rungs | {"clipped", "optimizer"})
    replays = tuple(
        replay.replace(fields=names) if replay.stage in ("gradient", "clipped") and names else replay
        for replay in way.replays
    )
    return replace(way, replays=replays)
