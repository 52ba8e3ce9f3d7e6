"""Completeness of a probe's sketched tensors: by a record itself, and beside another record. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from plumbline.judge.gaps import Gap, Role, lacks
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Evidence, ModelEvidence, ProbeEvidence, TapStage
from plumbline.schema.fact import Statement, fact
from plumbline.schema.verdict import Finding

_STAGES: tuple[TapStage, ...] = ("forward", "gradient", "weight")
_ROOT = "model"
"""Name of the whole model's tap."""
_CONTAINERS = ("ModuleList(", "ModuleDict(")
"""Modules that only hold others: nothing calls them."""
_NO_NAMES: dict[str, None] = {}


@dataclass(frozen=True)
class _Taps:
    """Names of the sketched tensors of a probe, and what the model shows of them."""

    probe: ProbeEvidence
    model: ModelEvidence | None

    @cached_property
    def names(self) -> Mapping[tuple[int, str], dict[str, None]]:
        """Return by (step, stage) the names in the order of execution; a further call (`#`) is no tensor of its own."""
        found: dict[tuple[int, str], dict[str, None]] = {}
        for tap in self.probe.taps:
            if "#" not in tap.name:
                found.setdefault((tap.step, tap.stage), {})[tap.name] = None
        return found

    def at(self, step: int, stage: TapStage) -> dict[str, None]:
        return self.names.get((step, stage), _NO_NAMES)

    @cached_property
    def called(self) -> dict[str, None]:
        """Return the modules with an output at any step."""
        return {name: None for (_, stage), names in self.names.items() if stage == "forward" for name in names}

    @cached_property
    def following(self) -> dict[tuple[int, str], str]:
        """Return by (step, module) the module that is called next."""
        outputs = {step: names for (step, stage), names in self.names.items() if stage == "forward"}
        return {(step, name): after for step, names in outputs.items() for name, after in pairwise(names)}

    @cached_property
    def used(self) -> frozenset[tuple[int, str]]:
        """Return (step, module) of the modules that contain a parameter with a gradient."""
        return frozenset(
            (step, module)
            for (step, stage), names in self.names.items()
            if stage == "gradient"
            for name in names
            for module in _around(name)
        )

    @cached_property
    def modules(self) -> dict[str, str]:
        """Return the class of each module, in the order of registration."""
        return {name or _ROOT: kind for name, kind in (self.model.modules if self.model else ())}

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Return the parameters that the model trains under their own name."""
        return frozenset(p.name for p in (self.model.parameters if self.model else ()) if not p.tied_to)

    @cached_property
    def owners(self) -> frozenset[str]:
        """Return the modules of these parameters."""
        return frozenset(map(_owner, self.parameters))

    @cached_property
    def successors(self) -> dict[str, str]:
        """Return the module that is registered after each module."""
        return dict(pairwise(self.modules))

    def parent(self, name: str) -> str | None:
        """Return the nearest module around `name` that computes; `None` if the model names none."""
        while name and name != _ROOT:
            name = name.rpartition(".")[0] or _ROOT
            if name in self.modules and not self.modules[name].startswith(_CONTAINERS):
                return name
        return None


def _owner(parameter: str) -> str:
    return parameter.rpartition(".")[0] or _ROOT


def _around(name: str) -> Iterator[str]:
    """Yield the names of all modules around a parameter."""
    while name:
        name = name.rpartition(".")[0]
        yield name or _ROOT


def missing_taps(loaded: LoadedRecord, probe: ProbeEvidence, asked: int) -> Iterator[Gap]:
    """Yield gaps for tensors that a record should have sketched; at most one for their names and role."""
    taps = _Taps(probe, loaded.record.evidence.model)
    if probe.taps and "sketch" not in loaded.sketches:
        yield lacks(
            "probe.sketches",
            "invalid",
            "sketches",
            fact("gap.sketches", num=len(probe.taps)),
        )
    elif name := _not_finite(loaded, probe):
        text = fact("gap.not-finite", name=name)
        yield lacks("probe.sketches", "invalid", "sketches", text, role="reference")
    if not any(tap.stage == "forward" for tap in probe.taps):
        yield lacks("probe.taps", "inconclusive", "taps", fact("gap.outputs"), 0, 1)
        return
    if problem := _unknown(taps):
        yield lacks("probe.taps", "invalid", "taps", fact("gap.has", problem=problem))
        return
    yield from _at_steps(taps, sorted(_tapped_steps(loaded, asked)))


def _not_finite(loaded: LoadedRecord, probe: ProbeEvidence) -> Statement:
    """Return the first tensor that is not finite, or ""; loss scaling skips steps with such gradients."""
    skipped = {step.step for step in probe.steps if step.gradient_norm is None and step.loss_scale is not None}
    finite = np.isfinite(loaded.sketches.get("sketch", np.zeros((0, 1)))).all(axis=1)
    for tap, is_finite in zip(probe.taps, np.atleast_1d(finite), strict=False):
        if (tap.norm is None or not is_finite) and not (tap.stage == "gradient" and tap.step in skipped):
            return fact("gap.tensor-at", stage=tap.stage, name=tap.name, step=tap.step)
    return ""


def _unknown(taps: _Taps) -> Statement:
    """Return how the taps contradict the model: a tensor sketched twice, or of an unknown name."""
    keys = [(tap.step, tap.stage, tap.name) for tap in taps.probe.taps]
    if len(set(keys)) != len(keys):
        return fact("gap.twice")
    if taps.model is None:
        return ""
    known: dict[str, Collection[str]] = {
        "forward": taps.modules, "gradient": taps.parameters, "weight": taps.parameters,
    }  # fmt: skip
    for step, stage, name in keys:
        base = name.partition("#")[0] if stage == "forward" else name
        if base not in known[stage]:
            return fact("gap.unknown-tensor", stage=stage, name=name, step=step)
    return ""


def _tapped_steps(loaded: LoadedRecord, asked: int) -> set[int]:
    spec, experiment = loaded.record.spec.probe, loaded.record.experiment
    if experiment is not None and experiment.trace is not None:
        return set(range(asked))
    captured = {capture.step for capture in experiment.captures if capture.step < asked} if experiment else set()
    return {step for step in spec.tap_steps if step < asked} | captured | {asked - 1} if spec else set()


def _at_steps(taps: _Taps, steps: Sequence[int]) -> Iterator[Gap]:
    """Yield the first gap in the tensors of the tapped steps, of a reference and of a candidate."""
    role: Role | None = None
    for step in steps:
        if gap := _lost_at(taps, step, role):
            yield gap
            return
        # The comparison decides on a candidate that calls a module rarely.
        rare = next((name for name in taps.called if name not in taps.at(step, "forward")), None)
        if rare is not None and role is None:
            yield _uncalled(taps, step, rare, "reference")
            role = "candidate"


def _lost_at(taps: _Taps, step: int, role: Role | None) -> Gap | None:
    """Return the first gap in the tensors of one step."""
    empty = next((stage for stage in _STAGES if not taps.at(step, stage)), None)
    if empty is not None:
        return lacks(
            "probe.taps",
            "invalid",
            "taps",
            fact("gap.stage", stage=empty, step=step),
            0,
            role=role,
        )
    held, own = taps.at(step, "weight"), taps.parameters
    if own and held.keys() != own:
        text = fact("gap.parameters", num=len(held), required=len(own), step=step)
        return lacks("probe.taps", "invalid", "taps", text, len(held), len(own), role=role)
    lost = _hidden(taps, step)
    return None if lost is None else _uncalled(taps, step, lost, role)


def _uncalled(taps: _Taps, step: int, name: str, role: Role | None) -> Gap:
    text = fact("gap.uncalled", name=name, step=step)
    return lacks("probe.taps", "invalid", "taps", text, len(taps.at(step, "forward")), role=role)


def _hidden(taps: _Taps, step: int) -> str | None:
    """Return a module that was called without a sketch of its output.

    A parameter with a gradient was used. If its module was not called, the module around it read the parameter; the
    output of that module, or without one of the next module, shows the effect.
    """
    outputs = taps.at(step, "forward")
    for name in dict.fromkeys(map(_owner, taps.at(step, "gradient"))):
        if name in outputs or name not in taps.modules:
            continue
        shown = taps.parent(name) or taps.successors.get(name)
        if shown not in outputs:
            return name
    return None


def unequal_taps(left: Evidence, right: Evidence) -> Iterator[tuple[str, Finding]]:
    """Yield (side, finding) if one record lacks taps of the other; at most one for each side.

    Where the digests of all gradients differ, a parameter without a gradient is a drift, whose rung names it. A module
    that a run never calls is no lost tap if another output shows its effect. A module that is called again, as
    checkpointing does, has separate taps with a `#` in their names, which may differ.
    """
    if left.probe is None or right.probe is None:
        return
    ours, theirs = _Taps(left.probe, left.model), _Taps(right.probe, right.model)
    pairs = list(zip(left.probe.steps, right.probe.steps, strict=False))
    same_gradients = {a.step for a, b in pairs if a.gradients_sha256 == b.gradients_sha256}
    same_logits = all(a.logits_sha256 == b.logits_sha256 for a, b in pairs)
    for side, held, wanted in (("reference", ours, theirs), ("candidate", theirs, ours)):
        lost = [
            (step, stage, name)
            for (step, stage), names in wanted.names.items()
            if stage != "gradient" or step in same_gradients
            for name in names
            if name not in held.names.get((step, stage), _NO_NAMES) and _has(held, stage, name)
            if stage != "forward" or not _is_shown(name, step, held, wanted, same_logits=same_logits)
        ]
        if lost:
            step, stage, name = min(lost)
            text = fact("gap.tensor", stage=stage, name=name, step=step)
            numbers = (len(held.probe.taps), len(wanted.probe.taps))
            yield side, lacks("probe.taps", "invalid", "taps", text, *numbers).finding(side)


def _has(taps: _Taps, stage: str, name: str) -> bool:
    """Return whether the model contains the module or parameter, as far as the record shows."""
    return taps.model is None or name in (taps.modules if stage == "forward" else taps.parameters)


def _is_shown(name: str, step: int, held: _Taps, wanted: _Taps, *, same_logits: bool) -> bool:
    """Return whether a module was never called, and another output of `held` shows the effect."""
    if name in held.called or (same_logits and name in held.owners):
        return False
    outputs = held.at(step, "forward")
    if wanted.following.get((step, name)) in outputs:
        return True
    # What is not called calls nothing either: the nearest module around shows the effect.
    parent = held.parent(name)
    while parent is not None and parent not in outputs and (step, name) not in held.used:
        name, parent = parent, held.parent(parent)
    return parent in outputs
