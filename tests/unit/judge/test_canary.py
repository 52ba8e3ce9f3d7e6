"""The canary detects a judge without findings, and accepts a correct judge."""

from __future__ import annotations

import pytest

from plumbline.judge import canary, comparison
from plumbline.judge.canary import ProbeProofs, canary_findings, prove
from plumbline.judge.comparison import compare
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import apply_canary, prove_round, proven_note
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.records import LoadedRecord
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement, PlatformResult
from tests.unit.suites import suite_of

from .conftest import set_step
from .made_records import Change, edit, in_spec, probe
from .made_speed import record, speed

FAULTS = {"throughput", "weights", "batches", "layer-norm-eps"}


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "fp16", "bf16"])
def test_the_judge_finds_every_known_fault_in_every_precision(precision: str) -> None:
    results = prove(edit(record(speed()), in_spec("probe", precision=precision)), Gates())
    assert {result.fault: result.verdict for result in results} == dict.fromkeys(FAULTS, "drift")


@pytest.mark.parametrize("drop", [0.001, 0.05, 0.84, 0.9])
def test_the_judge_finds_a_drop_beyond_every_limit(drop: float) -> None:
    results = prove(record(speed()), Gates(throughput_drop=drop))
    assert {result.fault: result.verdict for result in results} == dict.fromkeys(FAULTS, "drift")


def test_a_fault_that_cannot_be_decided_is_not_found() -> None:
    # Steps that spread this widely hide every drop.
    wide = speed().replace(steps=10, step_seconds_quartiles=(0.01, 0.11))
    (throughput, *others) = prove(record(wide), Gates())
    assert (throughput.is_found, throughput.verdict) == (False, "inconclusive")
    assert all(result.is_found for result in others)
    (finding,) = canary_findings((throughput, *others))
    assert (finding.check, finding.outcome) == ("canary.throughput", "inconclusive")
    results = apply_canary({"unit": {"left": PlatformResult(verdict="pass")}}, {("unit", "left"): (throughput,)})
    assert results["unit"]["left"].verdict == "inconclusive"


@pytest.mark.parametrize("blind", sorted(FAULTS))
def test_a_judge_that_is_blind_to_one_fault_makes_the_round_invalid(blind: str) -> None:
    faults = ["throughput", "weights", "batches", "layer-norm-eps"]
    calls = iter(faults)

    def judge(*args: object, **more: object) -> Judgement:
        judgement = compare(*args, **more)  # type: ignore[arg-type]
        return Judgement(verdict="pass") if next(calls) == blind else judgement

    round_ = Round("20261120-020000-abc", suite_of("left", workloads=("unit",)), {})
    results_found = GatheredRecords({Assignment("left", "unit", MAIN): record(speed())})
    proofs = prove_round(round_, results_found, judge)
    results = apply_canary({"unit": {"left": PlatformResult(verdict="pass")}}, proofs)
    result = results["unit"]["left"]
    assert result.verdict == "invalid"
    assert [finding.check for finding in result.findings] == [f"canary.{blind}"]
    assert proven_note(round_, proofs) == ("self-test of 2026-11-20: 3 of 4 planted faults found")


def test_a_machine_without_an_idle_core_leaves_the_canary_decided() -> None:
    """Two trainings share the machine of the local stack: tonight's load says nothing about the judge."""
    busy = record(speed(samples={"own_cpu": (1.0,) * 4, "foreign_cpu": (1.0,) * 4}))
    cores = busy.record.fingerprint.cpu.model_copy(update={"num_cores": 2})
    fingerprint = busy.record.fingerprint.model_copy(update={"cpu": cores})
    busy = LoadedRecord(busy.record.model_copy(update={"fingerprint": fingerprint}), busy.folder, busy.arrays)
    found = {result.fault: result.verdict for result in prove(busy, Gates())}
    assert found["throughput"] == "drift"


def test_machines_of_one_kind_with_equal_probes_are_tried_once_and_any_difference_is_tried_again() -> None:
    tried: list[str] = []

    def judge(reference: LoadedRecord, copy: LoadedRecord, gates: Gates, **more: object) -> Judgement:
        tried.append(reference.record.record_id)
        return comparison.compare(reference, copy, gates, **more)  # type: ignore[arg-type]

    def results(known: ProbeProofs, made: LoadedRecord, gates: Gates = Gates()) -> int:  # noqa: B008 - frozen
        before = len(tried)
        assert {result.fault for result in canary.prove(made, gates, judge, known)} == FAULTS
        return len(tried) - before

    known, first = ProbeProofs(), record(speed())
    assert results(known, first) == 4
    # A different speed is tried by itself, the probe is not tried again.
    assert results(known, record(speed(samples_per_second=90.0))) == 1
    other_loss: Change = lambda content: set_step(probe(content), 0, {"loss": 0.5})  # noqa: E731
    assert results(known, edit(first, other_loss)) == 4
    other_cpu: Change = lambda content: content["fingerprint"]["cpu"].update(model="other")  # noqa: E731
    assert results(known, edit(first, other_cpu)) == 4
    assert results(known, first, Gates(throughput_drop=0.2)) == 4
    assert results(known, first) == 1
