"""The canary's copies hold exactly their fault; what a record lacks is not a copy."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge.canary import CanaryResult, canary_findings, prove
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.bits import other_kernels
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import NativeOperation
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement, Outcome

from .conftest import make_record
from .made_records import with_evidence
from .made_speed import only, record, speed


def copies(original: LoadedRecord, gates: Gates = Gates()) -> list[tuple[LoadedRecord, Any]]:  # noqa: B008 - frozen
    found = []

    def judge(_reference: LoadedRecord, copy: LoadedRecord, _gates: Gates, *, confirms: Any) -> Judgement:
        found.append((copy, confirms))
        return Judgement(verdict="drift" if len(found) == 2 else "pass")

    results = prove(original, gates, judge)
    canary_findings(results)
    assert [result.is_found for result in results] == [place == 1 for place in range(len(results))]
    return found


@pytest.mark.parametrize("drop", [0.05, 0.25])
def test_a_slow_copy_is_a_fifth_slower_than_the_limit_in_every_number(drop: float) -> None:
    fast = speed().replace(tokens_per_second=640.0, wall_seconds=8.0)
    slow = copies(record(fast), Gates(throughput_drop=drop))[0][1]
    factor = 1 - 1.2 * drop
    assert slow.step_seconds_quartiles == pytest.approx([each / factor for each in fast.step_seconds_quartiles or ()])
    for name in ("samples_per_second", "tokens_per_second"):
        assert getattr(slow, name) == pytest.approx(getattr(fast, name) * factor)
    for name in ("step_seconds", "step_seconds_p95", "wall_seconds"):
        assert getattr(slow, name) == pytest.approx(getattr(fast, name) / factor)
    for name, seconds in fast.breakdown.items():
        assert slow.breakdown[name] == pytest.approx(seconds / factor)
    assert slow.samples == {}  # tonight's load says nothing about the judge
    assert copies(record(speed()))[0][1].tokens_per_second is None


def test_each_copy_of_a_probe_has_one_fault() -> None:
    made = make_record(has_portable_sketches=True)
    operation = NativeOperation(name="linear", sha256="a" * 16, sketch=(1.0,) * 8)
    fingerprint = made.record.fingerprint.replace(operations={"probe": (operation,)})
    original = LoadedRecord(made.record.replace(fingerprint=fingerprint), made.folder, made.arrays)
    probe = original.record.evidence.probe
    assert probe is not None
    assert probe.portable is not None
    (weights, _), (swapped, _), (eps, _) = copies(original)
    for copy in (weights, swapped, eps):
        other = copy.record.evidence.probe
        assert other is not None
        assert (other.weights == probe.weights) is (copy is not weights)
        assert other.weights[:-1] == probe.weights[:-1]
        batches = [step.batch for step in other.steps_of()]
        order = [1, 0, 2, 3, 4, 5] if copy is swapped else range(6)
        assert batches == [probe.at(place).batch for place in order]
        assert (copy.batches["row_ids"] == original.batches["row_ids"][list(order)]).all()
        assert other.taps == probe.taps
        assert other.portable is not None
        for step, known in zip(other.portable.windows, probe.portable.windows, strict=True):
            off = [name for name, bits in step.outputs if bits != dict(known.outputs)[name]]
            assert off == ["layer.norm"] * (copy is eps and step.step == 0)
            for key, numbers in step.sketches:
                size = 1.005 if copy is eps and key == "forward layer.norm" else 1.0
                assert numbers == pytest.approx([size * number for number in dict(known.sketches)[key]])
        assert (copy.record.fingerprint == original.record.fingerprint) is (copy is not eps)
        assert bool(other_kernels(Pair(original, copy))) is (copy is eps)


def test_a_record_that_cannot_hold_a_fault_has_no_copy_of_it() -> None:
    original = make_record()
    probe = original.record.evidence.probe
    assert probe is not None
    assert probe.portable is not None

    def changed(**changes: Any) -> LoadedRecord:
        return with_evidence(original, probe=probe.replace(**changes))

    same = {name: (marks[0], marks[0], *marks[2:]) for name, marks in probe.batches.items()}
    plain = [tap.replace(kind="Linear") if tap.kind == "LayerNorm" else tap for tap in probe.taps]
    owned = [tap.replace(kind="LayerNorm") if tap.stage == "optimizer" else tap for tap in plain]
    # What is incomplete or failed is invalid by itself.
    short = {name: values for name, values in original.arrays.items() if name != "sketches"}
    failed = original.record.replace(exit={"status": "failed", "code": "data", "message": "too large"})
    no_probe = original.record.replace(evidence=original.record.evidence.replace(probe=None))
    for number, each in (
        (3, original), (2, changed(batches=same)), (2, changed(taps=plain)), (2, changed(taps=owned)), (1, only()),
        (2, changed(portable=None)),
        (0, LoadedRecord(original.record, original.folder, short)),
        (0, LoadedRecord(failed, original.folder, original.arrays)),
        (0, LoadedRecord(no_probe, original.folder, {})),
    ):  # fmt: skip
        assert len(copies(each)) == number
    assert len(copies(record(speed().replace(samples_per_second=None)))) == 3
    assert len(copies(record(speed().replace(samples_per_second=0.0)))) == 3


def test_a_fault_that_is_not_found_is_invalid() -> None:
    verdicts: tuple[Outcome, ...] = ("drift", "pass", "invalid", "inconclusive")
    results = tuple(CanaryResult(name, verdict) for name, verdict in zip("abcd", verdicts, strict=True))
    findings = [(finding.check, finding.outcome) for finding in canary_findings(results)]
    assert findings == [("canary.b", "invalid"), ("canary.c", "invalid"), ("canary.d", "inconclusive")]
