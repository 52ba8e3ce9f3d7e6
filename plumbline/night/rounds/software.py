"""Comparison of tonight's software with the baseline's, and its A/B test. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import ValidationError

from plumbline.judge.gates.throughput_causes import speed_cause
from plumbline.judge.history.decision import Answers, Software
from plumbline.judge.history.metrics import Metric, software_key
from plumbline.records import LoadedRecord
from plumbline.schema.experiment import AbEvidence, AbOrder, AbRun
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.suite import Dispatch
from plumbline.schema.verdict import Cause, CauseCode

_WHOLE = [False, False, True, True]
_OWN = frozenset({"plumbline", "plumbline-training"})
_BESIDE = ("os", "driver", "container_image", "plumbline")
"""Fingerprint fields that no installed package restores."""
_FOLLOWS = ("cuda", "cudnn", "nccl", "numerics")
"""Fingerprint fields that follow from differing packages."""
MACHINE_CODES: frozenset[CauseCode] = frozenset({"loader", "transfer", "throttling", "slow-device", "contention"})


@dataclass(frozen=True, slots=True)
class SoftwareChange:
    """Difference of tonight's software from the baseline's, and its A/B test."""

    state: Software
    order: AbOrder | None = None
    """Packages that an A/B restores; `None` if it cannot."""
    changes: tuple[str, ...] = ()
    """Each package that differs, as `package before → after`."""
    beside: tuple[str, ...] = ()
    """Fingerprint fields that differ and are not restored."""
    hosts: tuple[str, ...] = ()
    """The hosts of the accepted record and of tonight, if they differ."""
    why: str = ""
    """Reason why no A/B can distinguish software from machine."""

    @property
    def note(self) -> str:
        """Describe the software change for a finding, or return ""."""
        left = f"not restored: {', '.join(self.beside)}" if self.beside and self.state == "can-differ" else ""
        return "; ".join(part for part in (self.why, left) if part)


def software_change(
    baseline: Fingerprint | None,
    tonight: Fingerprint,
    budget: Dispatch,
    *,
    same_for_weeks: bool,
    seed: int = 0,
    own_environment: bool = False,
) -> SoftwareChange:
    """Compare tonight's software with the accepted record's.

    `same_for_weeks` says whether the last nights had tonight's software too. `own_environment` says that the trainings
    do not run in the worker's environment. `seed` draws the order of an A/B's runs.
    """
    if baseline is None:
        if same_for_weeks:
            return SoftwareChange("equal")
        return SoftwareChange("unavailable", why="without an accepted baseline there is no environment to compare with")
    if software_key(baseline) == software_key(tonight):
        return SoftwareChange("equal")
    before, after = _packages(baseline), _packages(tonight)
    names = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    changes = tuple(f"{name} {before.get(name, 'absent')} → {after.get(name, 'absent')}" for name in names)
    fields = _BESIDE if names else (*_BESIDE, *_FOLLOWS)
    beside = tuple(name for name in fields if getattr(baseline, name) != getattr(tonight, name))
    found = SoftwareChange("unavailable", changes=changes, beside=beside)
    why = _obstacle(baseline, tonight, names, beside, budget)
    if why or own_environment:
        return replace(found, why=why or "an A/B is built from the worker's environment, not from the platform's own")
    try:
        packages = tuple((name, before.get(name, "")) for name in names)
        order = AbOrder(packages=packages, num_blocks=budget.ab_blocks, seconds=budget.ab_seconds, seed=seed)
    except ValidationError:
        return replace(found, why="the baseline's environment cannot be built: a package has no valid name or version")
    return replace(found, state="can-differ", order=order)


def _obstacle(
    baseline: Fingerprint, tonight: Fingerprint, names: Sequence[str], beside: Sequence[str], budget: Dispatch
) -> str:
    """Return why no A/B test is possible, or ""."""
    if _minor(baseline.python) != _minor(tonight.python):
        return f"the baseline ran on Python {baseline.python}: its environment cannot be built here"
    if not names:
        return f"the baseline's {', '.join(beside) or 'Python'} cannot be restored"
    return "" if budget.ab_blocks else "the suite turns the A/B off (dispatch.ab_blocks = 0)"


def with_ab(change: SoftwareChange, evidence: AbEvidence | None, lost: str = "") -> SoftwareChange:
    """Return the software change after its A/B test."""
    if evidence is None:
        return (
            replace(change, state="unavailable", order=None, why=f"the A/B left no record: {lost}") if lost else change
        )
    if evidence.unavailable:
        why = f"the baseline's environment cannot be built any more: {evidence.unavailable}"
        return replace(change, state="unavailable", order=None, why=why)
    return change


def ab_answers(answers: Answers, evidence: AbEvidence, metric: Metric, num_tested: int) -> Answers:
    """Return the A/B test's results for the decision engine."""
    blocks = _whole_blocks(evidence)
    ours, theirs = (np.full((len(blocks), 2), math.nan) for _ in range(2))
    for row, runs in enumerate(blocks):
        for array, is_tonight in ((ours, True), (theirs, False)):
            values = [run.metrics.get(metric.name) for run in runs if run.is_tonight == is_tonight]
            array[row] = metric.scores(values)
    return replace(answers, tonight=ours, baseline=theirs, num_tested=num_tested)


def _whole_blocks(evidence: AbEvidence) -> list[list[AbRun]]:
    """Return the A/B test's blocks with complete runs."""
    blocks: dict[int, list[AbRun]] = {}
    for run in evidence.runs:
        blocks.setdefault(run.block, []).append(run)
    return [runs for _, runs in sorted(blocks.items()) if sorted(run.is_tonight for run in runs) == _WHOLE]


def hosts_of(baseline: Fingerprint, tonight: Fingerprint) -> tuple[str, ...]:
    """Name both machines if host or accelerators differ."""
    before, after = (
        ", ".join([fingerprint.hostname, *sorted(gpu.uuid for gpu in fingerprint.gpus)])
        for fingerprint in (baseline, tonight)
    )
    return (f"the accepted record ran on {before}, tonight's on {after}",) if before != after else ()


def machine_cause(baseline: LoadedRecord | None, runs: Sequence[LoadedRecord]) -> Cause | None:
    """Return the hardware cause that all of tonight's runs suggest, or `None`.

    Signs are relative to the accepted record, so runs on a different machine class are ignored.
    """
    if baseline is None or any(
        run.record.fingerprint.hardware_class != baseline.record.fingerprint.hardware_class for run in runs
    ):
        return None
    before = baseline.record.evidence.speed
    speeds = [(run.record.evidence.speed, run.record.fingerprint.cpu.num_cores) for run in runs]
    if before is None or not speeds or any(speed is None for speed, _ in speeds):
        return None
    named = [speed_cause(before, speed, num_cores) for speed, num_cores in speeds if speed is not None]
    code, why, evidence = named[0]
    if code is None or code not in MACHINE_CODES or any(other != code for other, _, _ in named):
        return None
    return Cause(code=code, sure="likely", why=why, evidence=evidence)


def _packages(fingerprint: Fingerprint) -> dict[str, str]:
    return {name: version for name, version in fingerprint.packages.items() if name not in _OWN}


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
