"""Intervention of an experiment: the reference's values to restore, and where from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Tap
from plumbline.schema.experiment import Capture, Replay
from plumbline.schema.experiment import Rung as ReplayRung

CAPTURED = "capture.safetensors"

Method = Literal["replay", "exact", "observed"]


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a record that a bundle contains under the name `key`."""

    key: str
    record_id: str
    part: str


@dataclass(frozen=True, slots=True)
class Intervention:
    """One way to restore a suspect's value for the first `steps`."""

    description: str
    steps: int
    method: Method = "replay"
    replays: tuple[Replay, ...] = ()
    sources: tuple[Source, ...] = ()
    captures: tuple[Capture, ...] = ()
    """Captured from the reference first; replays with the source `capture.safetensors` read them."""
    rungs: frozenset[str] = field(default_factory=frozenset)
    """Rungs that are equal by construction afterwards, and so are not evidence."""
    by_definition: bool = False
    """Whether the value follows from its definition instead of the reference's bits: equal up to rounding only."""
    kind: str = ""
    """Class of the modules whose outputs are imposed."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A suspect that stays restored while later suspects are tested."""

    way: Intervention
    captured: str

    @property
    def lacks_capture(self) -> bool:
        """Return whether the reference has to run again, to capture tensors."""
        return bool(self.way.captures) and not self.captured

    def reaching(self, taps: tuple[Tap, ...], steps: int) -> Kept:
        """Return the intervention over `steps` steps, with a new capture where needed."""
        if not self.way.kind or self.way.steps >= steps:
            return self
        first = min(each.step for each in self.way.captures)
        return Kept(forward_of(taps, first, self.way.kind, until=steps), "")

    @property
    def _key(self) -> str:
        return f"capture-{self.captured}.safetensors"

    def replays(self, steps: int) -> Iterator[Replay]:
        """Yield the replays within the first `steps`."""
        for replay in self.way.replays:
            if replay.step is None or replay.step < steps:
                yield replay.replace(source=self._key) if replay.source == CAPTURED else replay

    def sources(self) -> Iterator[Source]:
        """Yield the record parts that the replays read."""
        yield from self.way.sources
        if self.captured:
            yield Source(self._key, self.captured, CAPTURED)


def forward_of(taps: tuple[Tap, ...], step: int, kind: str, *, until: int | None = None) -> Intervention:
    """Impose the outputs and gradients of all modules of the class `kind`.

    At `step` alone, or at all steps from `step` to before `until`.
    """
    first = min((tap.step for tap in taps), default=0)
    names = _same_kind(taps, step, kind) or _same_kind(taps, first, kind)
    steps = range(step, until or step + 1)
    rungs: tuple[ReplayRung, ...] = ("forward", "gradient")
    when = f"step {step}" if len(steps) == 1 else f"steps {step} to {steps[-1]}"
    return Intervention(
        f"the reference's outputs of every {kind} at {when}",
        steps[-1] + 1,
        replays=tuple(Replay(rung=rung, step=each, source=CAPTURED) for each in steps for rung in rungs),
        captures=tuple(
            Capture(rung=rung, names=names if rung == "forward" else (), step=each) for each in steps for rung in rungs
        ),
        rungs=frozenset({"gradient"}),
        kind=kind,
    )


def _same_kind(taps: tuple[Tap, ...], step: int, kind: str) -> tuple[str, ...]:
    """Return the modules of this class that were tapped at `step`."""
    return tuple(tap.name for tap in taps if tap.step == step and tap.stage == "forward" and tap.kind == kind)


def only_trained(way: Intervention, trained: frozenset[str], reference: LoadedRecord) -> Intervention:
    """Limit imposed gradients to the parameters that both sides train."""
    names = tuple(sorted(trained))
    taps = reference.record.evidence.probe.taps if reference.record.evidence.probe else ()
    if way.kind and {tap.name for tap in taps if tap.stage == "gradient"} - trained:
        way = replace(way, rungs=way.rungs | {"clipped", "optimizer"})
    replays = tuple(
        replay.replace(fields=names) if replay.rung in ("gradient", "clipped") and names else replay
        for replay in way.replays
    )
    return replace(way, replays=replays)
