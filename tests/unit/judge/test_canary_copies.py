"""The canary's copies hold exactly their fault; what a record lacks is no copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plumbline.judge.canary import CanaryResult, canary_findings, prove
from plumbline.judge.own_evaluation import OwnEvaluation, deviation, may_hide
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement, Outcome
from tests.kept_results import keep
from tests.said import said

from .conftest import make_record
from .made_speed import only, record, speed
from .test_restored import with_evaluation, with_step


def copies(original: LoadedRecord, gates: Gates = Gates()) -> list[tuple[LoadedRecord, Any]]:  # noqa: B008 - frozen
    found = []

    def judge(_reference: LoadedRecord, copy: LoadedRecord, _gates: Gates, *, confirms: Any) -> Judgement:
        found.append((copy, confirms))
        return Judgement(verdict="drift" if len(found) == 2 else "pass")

    results = prove(original, gates, judge)
    keep(canary_findings(results))
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
    original = make_record()
    probe = original.record.evidence.probe
    assert probe is not None
    (weights, _), (swapped, _), (eps, _) = copies(original)
    for copy in (weights, swapped, eps):
        other = copy.record.evidence.probe
        assert other is not None
        marks = [step.weights_sha256 for step in other.steps]
        assert (marks == [step.weights_sha256 for step in probe.steps]) is (copy is not weights)
        assert marks[:-1] == [step.weights_sha256 for step in probe.steps][:-1]
        batches = [step.batch for step in other.steps]
        order = [1, 0, 2, 3, 4, 5] if copy is swapped else range(6)
        assert batches == [probe.steps[place].batch for place in order]
        assert (copy.batches["row_ids"] == original.batches["row_ids"][list(order)]).all()
        sketches = copy.sketches["sketch"]
        for place, tap in enumerate(probe.taps):
            norm = np.linalg.norm(original.sketches["sketch"][place])
            off = np.linalg.norm(sketches[place] - original.sketches["sketch"][place]) / norm if norm else 0.0
            is_off = copy is eps and tap.stage == "forward" and tap.kind == "LayerNorm"
            assert off == pytest.approx(5e-3 if is_off else 0.0)
            assert (other.taps[place].sha256 == tap.sha256) is not is_off
        assert (copy.record.fingerprint == original.record.fingerprint) is (copy is not eps)


def test_a_record_that_cannot_hold_a_fault_has_no_copy_of_it() -> None:
    original = make_record()
    probe = original.record.evidence.probe
    assert probe is not None

    def changed(**changes: Any) -> LoadedRecord:
        evidence = original.record.evidence.replace(probe=probe.replace(**changes))
        return LoadedRecord(original.record.replace(evidence=evidence), original.folder, original.arrays)

    same = [probe.steps[0], probe.steps[1].replace(batch=probe.steps[0].batch), *probe.steps[2:]]
    plain = [tap.replace(kind="Linear") if tap.kind == "LayerNorm" else tap for tap in probe.taps]
    owned = [tap.replace(kind="LayerNorm") if tap.stage == "weight" else tap for tap in plain]
    # What is incomplete or failed is invalid by itself.
    short = {name: values for name, values in original.arrays.items() if name != "sketches"}
    failed = original.record.replace(exit={"status": "failed", "code": "data", "message": "too large"})
    no_probe = original.record.replace(evidence=original.record.evidence.replace(probe=None))
    for number, each in (
        (3, original), (2, changed(steps=same)), (2, changed(taps=plain)), (2, changed(taps=owned)), (1, only()),
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
    findings = [(finding.check, finding.outcome) for finding in keep(canary_findings(results))]
    assert findings == [("canary.b", "invalid"), ("canary.c", "invalid"), ("canary.d", "inconclusive")]


def test_an_own_evaluation_is_closed_without_a_deviation() -> None:
    for found, is_closed in (("its logits are off", False), ("", True), (None, True)):
        after = OwnEvaluation().after_candidate(found)
        assert (after.is_closed, after.found) == (is_closed, found or "")
    assert keep(OwnEvaluation(found="it evaluates different rows").cause()).sure == "confirmed"


@pytest.mark.parametrize(
    ("own", "defined", "text"),
    [
        ({"loss": 1.0 + 4e-6}, {"loss": 1.0}, ""),
        ({"loss": 1.0 + 6e-6}, {"loss": 1.0}, "equal logits give a loss that is off by 6e-06"),
        ({"loss": 1.0 - 6e-6}, {"loss": 1.0}, "equal logits give a loss that is off by 6e-06"),
        ({"loss": 1.0}, {"loss": 4.0}, "equal logits give a loss that is off by 0.75"),
        ({"loss": 4.0}, {"loss": 1.0}, "equal logits give a loss that is off by 3"),
        ({"loss": None}, {"loss": 1.0}, "its loss is not finite"),
        ({"accuracy": 0.25}, {}, "equal logits give different predictions or a different accuracy"),
        ({"accuracy": 0.75}, {}, "equal logits give different predictions or a different accuracy"),
        ({"predictions_sha256": "f" * 64}, {}, "equal logits give different predictions or a different accuracy"),
        ({}, {"predictions_sha256": "0" * 64}, "equal logits give different predictions or a different accuracy"),
        ({"rows_sha256": "f" * 64, "logits_sha256": "f" * 64}, {}, "it evaluates different rows"),
        ({}, {"rows_sha256": "0" * 64}, "it evaluates different rows"),
        ({"logits_sha256": "f" * 64, "loss": 9.0}, {}, ""),  # equal to the last digit of every logit
    ],
)
def test_an_evaluation_deviates_in_its_first_part_that_differs(
    own: dict[str, Any], defined: dict[str, Any], text: str
) -> None:
    sides = with_evaluation(make_record(), **own), with_evaluation(make_record(), **defined)
    assert said(deviation(*sides, ["operator"])) == text
    assert said(deviation(*sides, [])) == text
    assert said(deviation(*sides, ["operator", "kernel"])) == (
        "" if "loss" in own and "logits_sha256" not in own else text
    )


@pytest.mark.parametrize(("size", "deviates"), [(3e-5, False), (7e-5, True)])
def test_logits_of_the_definition_may_differ_by_rounding(size: float, deviates: bool) -> None:
    off = make_record()
    logits = off.arrays["evaluation"]["logits"] * (1 + size)
    arrays = off.arrays | {"evaluation": off.arrays["evaluation"] | {"logits": logits}}
    own = with_evaluation(LoadedRecord(off.record, off.folder, arrays), logits_sha256="e" * 64)
    found = keep(deviation(own, make_record(), ["operator"]))
    assert said(found) == (f"its logits are off by {size:.3g}" if deviates else "")


def test_only_the_same_weights_at_the_last_step_are_compared() -> None:
    plain = make_record()
    last = len(plain.record.evidence.probe.steps) - 1  # type: ignore[union-attr]
    assert deviation(with_step(plain, last, weights_sha256="0" * 64), plain, []) is None
    assert deviation(with_step(plain, last, weights_sha256="f" * 64), plain, []) is None
    assert deviation(with_step(plain, last - 1, weights_sha256="0" * 64), plain, []) == ""
    bare = LoadedRecord(
        plain.record.replace(evidence=plain.record.evidence.replace(probe=None)), plain.folder, plain.arrays
    )
    for sides in ((bare, plain), (plain, bare)):
        assert deviation(*sides, []) is None
        assert not may_hide(*sides, ["operator"])
    for accuracy in (0.25, 0.75):
        assert may_hide(plain, with_evaluation(plain, accuracy=accuracy), ["operator"])


def test_probes_without_steps_have_no_weights_that_differ() -> None:
    plain = make_record()
    evidence = plain.record.evidence.replace(probe=plain.record.evidence.probe.replace(steps=[]))  # type: ignore[union-attr]
    empty = LoadedRecord(plain.record.replace(evidence=evidence), plain.folder, plain.arrays)
    assert deviation(empty, empty, ["operator"]) == ""
    assert deviation(empty, plain, ["operator"]) is None
