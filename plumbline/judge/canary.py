"""Canary: inject small known faults to test that the judge detects each."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np

from plumbline.judge.comparison import compare
from plumbline.judge.gates.throughput import noise_of
from plumbline.judge.spec_precision import different_precision
from plumbline.judge.whole import stands_alone
from plumbline.records import LoadedRecord
from plumbline.schema import limits
from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import Evidence, PortableEvidence, ProbeEvidence, SpeedEvidence
from plumbline.schema.fact import fact
from plumbline.schema.record import RunRecord
from plumbline.schema.step_log import Sums
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Finding, Judgement, Outcome

Judge = Callable[..., Judgement]


@dataclass(frozen=True, slots=True)
class CanaryResult:
    """Verdict on a record copy with one injected fault."""

    fault: str
    verdict: Outcome

    @property
    def is_found(self) -> bool:
        """Return whether the judge detected the fault; `inconclusive` does not count."""
        return self.verdict == "drift"


class ProbeProofs:
    """Cache of canary results, shared by records with equal evidence."""

    def __init__(self) -> None:
        self._known: dict[Hashable, list[tuple[Evidence, tuple[CanaryResult, ...]]]] = {}

    def find(self, record: RunRecord, gates: Gates) -> tuple[CanaryResult, ...] | None:
        """Return the cached results of a record with equal probe evidence."""
        for evidence, results in self._known.get(_kind(record, gates), ()):
            if all(getattr(evidence, name) == getattr(record.evidence, name) for name in ("data", "model", "probe")):
                return results
        return None

    def add(self, record: RunRecord, gates: Gates, results: tuple[CanaryResult, ...]) -> None:
        """Cache the canary results of one record."""
        self._known.setdefault(_kind(record, gates), []).append((record.evidence, results))


def _kind(record: RunRecord, gates: Gates) -> Hashable:
    parts = tuple((part.key, part.sha256) for part in record.parts)
    return record.spec_sha256, gates, record.fingerprint.hardware_class, parts


def prove(
    record: LoadedRecord, gates: Gates, judge: Judge = compare, known: ProbeProofs | None = None
) -> tuple[CanaryResult, ...]:
    """Inject each known fault into a copy of `record`, and judge it."""
    if not stands_alone(record) or different_precision(record) is not None:
        return ()
    known = known or ProbeProofs()

    def tried(copies: Iterator[Copy]) -> tuple[CanaryResult, ...]:
        return tuple(
            CanaryResult(fault, judge(against, copy, gates, confirms=confirms).verdict)
            for fault, against, copy, confirms in copies
        )

    slower, results = tried(_slower_copies(record, gates)), known.find(record.record, gates)
    if results is None:
        results = tried(_probe_copies(record))
        known.add(record.record, gates, results)
    return (*slower, *results)


def canary_findings(results: tuple[CanaryResult, ...]) -> tuple[Finding, ...]:
    """Return a finding for each injected fault that the judge missed."""
    undecided = fact("canary.too-noisy")
    missed = fact("canary.missed")
    return tuple(
        Finding(
            check="canary." + result.fault,
            outcome="inconclusive" if result.verdict == "inconclusive" else "invalid",
            metric=fact("canary.fault"),
            observed=result.verdict,
            limit="drift",
            detail=undecided if result.verdict == "inconclusive" else missed,
        )
        for result in results
        if not result.is_found
    )


Copy = tuple[str, LoadedRecord, LoadedRecord, SpeedEvidence | None]
"""Fault, the record without it, the copy with it, and the rerun that confirms it."""


def _slower_copies(record: LoadedRecord, gates: Gates) -> Iterator[Copy]:
    """Yield a copy of the record with lower throughput, if measured."""
    evidence = record.record.evidence
    if evidence.speed is not None and evidence.speed.samples_per_second:
        # Other load would excuse the copy's drop: the canary is about the judge, not about tonight's machine.
        quiet = evidence.speed.model_copy(update={"samples": {}})
        slow = _slowed(quiet, 1 - _drop(quiet, gates))
        before, after = (_with(record, evidence.model_copy(update={"speed": speed})) for speed in (quiet, slow))
        yield "throughput", before, after, slow


def _probe_copies(record: LoadedRecord) -> Iterator[Copy]:
    """Yield record copies, each with one fault in its probe."""
    evidence = record.record.evidence
    probe = evidence.probe
    if probe is None:
        return
    yield "weights", record, _with(record, _probe(evidence, weights=_other_weights(probe))), None
    if probe.num_steps > 1 and probe.at(0).batch != probe.at(1).batch:
        yield "batches", record, _swapped(record, evidence, probe), None
    norms = {tap.name for tap in probe.taps if tap.stage == "forward" and "LayerNorm" in tap.kind}
    found = probe.portable
    if found is None:
        return
    if any(name in norms for window in found.windows for name, _ in window.outputs):
        yield "layer-norm-eps", record, _other_eps(record, found, norms), None


def _with(record: LoadedRecord, evidence: Evidence, **arrays: dict[str, np.ndarray]) -> LoadedRecord:
    changed = record.record.model_copy(update={"evidence": evidence})
    return LoadedRecord(changed, record.folder, {**record.arrays, **arrays})


def _probe(evidence: Evidence, **changes: object) -> Evidence:
    probe = evidence.probe
    return evidence.model_copy(update={"probe": probe.model_copy(update=changes) if probe is not None else None})


def _drop(speed: SpeedEvidence, gates: Gates) -> float:
    """Return a throughput drop that the throughput gate must detect."""
    spread = gates.throughput_standard_errors * math.hypot(noise_of(speed), noise_of(speed))
    least = max(gates.throughput_drop, spread) if spread < 1 else gates.throughput_drop
    return min(limits.CANARY_DROP * least, (1 + least) / 2)


def _slowed(speed: SpeedEvidence, factor: float) -> SpeedEvidence:
    """Multiply every rate by `factor`, and divide every duration by `factor`."""
    names = ("samples_per_second", "tokens_per_second", "real_tokens_per_second")
    rates = {name: getattr(speed, name) for name in names}
    times = {
        "step_seconds": speed.step_seconds,
        "step_seconds_p95": speed.step_seconds_p95,
        "wall_seconds": speed.wall_seconds,
    }
    changes: dict[str, object] = {name: value * factor for name, value in rates.items() if value is not None}
    changes |= {name: value / factor for name, value in times.items() if value is not None}
    if speed.step_seconds_quartiles:
        changes["step_seconds_quartiles"] = tuple(value / factor for value in speed.step_seconds_quartiles)
    changes["breakdown"] = {name: value / factor for name, value in speed.breakdown.items()}
    return speed.model_copy(update=changes)


def _other_weights(probe: ProbeEvidence) -> Sums:
    done, last = probe.weights[-1]
    return (*probe.weights[:-1], (done, digest_json(["canary", last])[: len(last)]))


def _swapped(record: LoadedRecord, evidence: Evidence, probe: ProbeEvidence) -> LoadedRecord:
    """Swap the contents of the first two batches."""
    marks = {name: (second, first, *others) for name, (first, second, *others) in probe.batches.items()}
    batches = {}
    for name, array in record.batches.items():
        batches[name] = array.copy()
        batches[name][[0, 1]] = array[[1, 0]]
    return _with(record, _probe(evidence, batches=marks), batches=batches)


def _other_eps(record: LoadedRecord, found: PortableEvidence, norms: set[str]) -> LoadedRecord:
    """Imitate a different LayerNorm epsilon in the outputs of the record's windows."""
    windows = []
    for window in found.windows:
        outputs = [
            (name, digest_json(["canary", bits])[:16] if name in norms else bits) for name, bits in window.outputs
        ]
        keys, factor = {f"forward {name}" for name in norms}, 1 + limits.CANARY_EPS
        sketches = [
            (key, tuple(number * factor for number in numbers) if key in keys else numbers)
            for key, numbers in window.sketches
        ]
        windows.append(window.model_copy(update={"outputs": tuple(outputs), "sketches": tuple(sketches)}))
    portable = found.model_copy(update={"windows": tuple(windows)})
    copy = _with(record, _probe(record.record.evidence, portable=portable))
    cpu = copy.record.fingerprint.cpu
    operations = {
        part: tuple(
            each.model_copy(update={"sha256": digest_json(["canary", each.sha256])[: len(each.sha256)]})
            for each in measured
        )
        for part, measured in copy.record.fingerprint.operations.items()
    }
    changed = {"cpu": cpu.model_copy(update={"isa": f"not {cpu.isa}"}), "operations": operations}
    fingerprint = copy.record.fingerprint.model_copy(update=changed)
    return LoadedRecord(copy.record.model_copy(update={"fingerprint": fingerprint}), copy.folder, copy.arrays)
