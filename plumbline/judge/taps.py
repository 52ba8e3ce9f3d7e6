"""Completeness of a probe's tensor sketches, alone and against another record. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from plumbline.judge.gaps import Gap, Role
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Evidence, ModelEvidence, ProbeEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import ProbeSpec
from plumbline.schema.stage import TAPPED, Stage
from plumbline.schema.verdict import Finding

_ROOT = "model"
"""Name of the whole model's tap."""
_CONTAINERS = ("ModuleList(", "ModuleDict(")
"""Modules that only hold others: nothing calls them."""
_NO_NAMES: dict[str, None] = {}


@dataclass(frozen=True)
class _Taps:
    """Names of a probe's sketched tensors, and of the model's modules."""

    probe: ProbeEvidence
    model: ModelEvidence | None

    @cached_property
    def names(self) -> Mapping[tuple[int, Stage], dict[str, None]]:
        """Map (step, stage) to tensor names in execution order."""
        found: dict[tuple[int, Stage], dict[str, None]] = {}
        for tap in self.probe.taps:
            if "#" not in tap.name:
                found.setdefault((tap.step, tap.stage), {})[tap.name] = None
        return found

    def at(self, step: int, stage: Stage) -> dict[str, None]:
        return self.names.get((step, stage), _NO_NAMES)

    @cached_property
    def called(self) -> dict[str, None]:
        """Return the modules with a recorded output at any step."""
        return {name: None for (_, stage), names in self.names.items() if stage == "forward" for name in names}

    @cached_property
    def following(self) -> dict[tuple[int, str], str]:
        """Map (step, module) to the module that runs next."""
        outputs = {step: names for (step, stage), names in self.names.items() if stage == "forward"}
        return {(step, name): after for step, names in outputs.items() for name, after in pairwise(names)}

    @cached_property
    def used(self) -> frozenset[tuple[int, str]]:
        """Return (step, module) for all modules around a parameter with a gradient."""
        return frozenset(
            (step, module)
            for (step, stage), names in self.names.items()
            if stage == "gradient"
            for name in names
            for module in _around(name)
        )

    @cached_property
    def modules(self) -> dict[str, str]:
        """Map each module to its class, in registration order."""
        return {name or _ROOT: kind for name, kind in (self.model.modules if self.model else ())}

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Return the trained parameters, without those tied to another one."""
        return frozenset(p.name for p in (self.model.parameters if self.model else ()) if not p.tied_to)

    def known(self, stage: Stage) -> Collection[str]:
        """Return the model's names for tensors of a stage."""
        return self.modules if stage == "forward" else self.parameters

    @cached_property
    def owners(self) -> frozenset[str]:
        """Return the modules that own the trained parameters."""
        return frozenset(map(_owner, self.parameters))

    @cached_property
    def successors(self) -> dict[str, str]:
        """Map each module to the next in registration order."""
        return dict(pairwise(self.modules))

    def parent(self, name: str) -> str | None:
        """Return the nearest parent module that computes something, or `None`."""
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


def num_steps(record: RunRecord, spec: ProbeSpec | None) -> int:
    """Return the number of steps of a probe."""
    if record.experiment is not None:
        return record.experiment.steps
    return spec.steps if spec else 0


def missing_taps(loaded: LoadedRecord, probe: ProbeEvidence, spec: ProbeSpec | None) -> Iterator[Gap]:
    """Yield gaps for missing, unknown or non-finite tensor sketches."""
    taps = _Taps(probe, loaded.record.evidence.model)
    if probe.taps and "sketch" not in loaded.sketches:
        yield Gap("probe.sketches", "sketches", fact("gap.sketches", num=len(probe.taps)), "invalid")
    elif name := _not_finite(loaded, probe):
        yield Gap("probe.sketches", "sketches", fact("gap.not-finite", name=name), "invalid", role="reference")
    if not any(tap.stage == "forward" for tap in probe.taps):
        yield Gap("probe.taps", "taps", fact("gap.outputs"), "inconclusive", 0, 1)
    elif problem := _unknown(taps):
        yield _lost(fact("gap.has", problem=problem))
    else:
        yield from _at_steps(taps, sorted(_tapped_steps(loaded.record, spec)))


def _lost(text: Statement, observed: int | None = None, wanted: int | None = None, role: Role | None = None) -> Gap:
    return Gap("probe.taps", "taps", text, "invalid", observed, wanted, role)


def _not_finite(loaded: LoadedRecord, probe: ProbeEvidence) -> Statement:
    """Return the first non-finite tensor that loss scaling does not skip."""
    skipped = {step.step for step in probe.steps_of() if step.gradient_norm is None and step.loss_scale is not None}
    finite = np.isfinite(loaded.sketches.get("sketch", np.zeros((0, 1)))).all(axis=1)
    for tap, is_finite in zip(probe.taps, np.atleast_1d(finite), strict=False):
        if (tap.norm is None or not is_finite) and not (tap.stage == "gradient" and tap.step in skipped):
            return fact("gap.tensor-at", stage=tap.stage, name=tap.name, step=tap.step)
    return ""


def _unknown(taps: _Taps) -> Statement:
    """Describe a duplicate or unknown tensor sketch, or return ""."""
    keys = [(tap.step, tap.stage, tap.name) for tap in taps.probe.taps]
    if len(set(keys)) != len(keys):
        return fact("gap.twice")
    for step, stage, name in keys if taps.model is not None else ():
        base = name.partition("#")[0] if stage == "forward" else name
        if base not in taps.known(stage):
            return fact("gap.unknown-tensor", stage=stage, name=name, step=step)
    return ""


def _tapped_steps(record: RunRecord, spec: ProbeSpec | None) -> set[int]:
    experiment, asked = record.experiment, num_steps(record, spec)
    captured = {capture.step for capture in experiment.captures} if experiment else set()
    return {step for step in (*spec.tap_steps, *captured, asked - 1) if step < asked} if spec else set()


def _at_steps(taps: _Taps, steps: Sequence[int]) -> Iterator[Gap]:
    """Yield the first missing tensor at the sketched steps, for each role."""
    role: Role | None = None
    for step in steps:
        outputs, weights, own = taps.at(step, "forward"), taps.at(step, "optimizer"), taps.parameters
        if empty := next((stage for stage in TAPPED if not taps.at(step, stage)), None):
            yield _lost(fact("gap.stage", stage=empty, step=step), 0, role=role)
            return
        if own and weights.keys() != own:
            text = fact("gap.parameters", num=len(weights), required=len(own), step=step)
            yield _lost(text, len(weights), len(own), role)
            return
        if (hidden := _hidden(taps, step)) is not None:
            yield _lost(fact("gap.uncalled", name=hidden, step=step), len(outputs), role=role)
            return
        # The comparison decides on a candidate that calls a module rarely.
        rare = next((name for name in taps.called if name not in outputs), None)
        if rare is not None and role is None:
            yield _lost(fact("gap.uncalled", name=rare, step=step), len(outputs), role="reference")
            role = "candidate"


def _hidden(taps: _Taps, step: int) -> str | None:
    """Return a module that ran without a sketch of its output.

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
    """Yield (side, finding) if one record lacks sketches that the other has.

    Where the digests of all gradients differ, a parameter without a gradient is a drift, whose rung names it. A module
    that a run never calls is no lost tap if another output shows its effect. A module that is called again, as
    checkpointing does, has separate taps with a `#` in their names, which may differ.
    """
    if left.probe is None or right.probe is None:
        return
    ours, theirs = _Taps(left.probe, left.model), _Taps(right.probe, right.model)
    pairs = list(zip(left.probe.steps_of(), right.probe.steps_of(), strict=False))
    same_gradients = {a.step for a, b in pairs if a.gradients == b.gradients}
    same_logits = all(a.logits == b.logits for a, b in pairs)
    for side, held, wanted in (("reference", ours, theirs), ("candidate", theirs, ours)):
        lost = [
            (step, stage, name)
            for (step, stage), names in wanted.names.items()
            if stage != "gradient" or step in same_gradients
            for name in names
            if name not in held.at(step, stage) and (held.model is None or name in held.known(stage))
            if stage != "forward" or not _is_shown(name, step, held, wanted, same_logits=same_logits)
        ]
        if lost:
            step, stage, name = min(lost)
            text = fact("gap.tensor", stage=stage, name=name, step=step)
            yield side, _lost(text, len(held.probe.taps), len(wanted.probe.taps)).finding(side)


def _is_shown(name: str, step: int, held: _Taps, wanted: _Taps, *, same_logits: bool) -> bool:
    """Return whether a module never ran, and another output shows the effect."""
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
