"""A record without some evidence is never equal to one that has it, beside any record and for any gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import plumbline
from plumbline.judge.rounds import judge_round
from plumbline.records import LoadedRecord

from .loops import train

Change = Callable[[LoadedRecord], LoadedRecord]


def evidence(record: LoadedRecord, **changes: Any) -> LoadedRecord:
    held = record.record.evidence.model_copy(update=changes)
    return replace(record, record=record.record.model_copy(update={"evidence": held}))


def probe(**changes: Any) -> Change:
    return lambda record: evidence(record, probe=record.record.evidence.probe.model_copy(update=changes))


def captured(**changes: Any) -> Change:
    return lambda record: evidence(record, captured=record.record.evidence.captured.model_copy(update=changes))


def without_taps(stage: str) -> Change:
    def change(record: LoadedRecord) -> LoadedRecord:
        taps = record.record.evidence.probe.taps
        left = [place for place, tap in enumerate(taps) if tap.stage != stage]
        found = probe(taps=tuple(taps[place] for place in left))(record)
        return replace(found, arrays={"sketches": {"sketch": record.sketches["sketch"][left]}})

    return change


WITHOUT: dict[str, Change] = {
    "probe": lambda record: evidence(record, probe=None), "model": lambda record: evidence(record, model=None),
    "captured": lambda record: evidence(record, captured=None), "losses": probe(losses=()),
    "known losses": lambda record: probe(losses=(None,) * record.record.evidence.probe.num_steps)(record),
    "batches": lambda record: captured(inputs={})(probe(batches={})(record)), "logits": probe(logits=()),
    "weights": probe(weights=()), "generators": probe(generators={}), "rates": probe(learning_rates=()),
    "recorded steps": captured(recorded=()), "outputs": without_taps("forward"),
    "gradients": without_taps("gradient"), "updates": without_taps("optimizer"), "proofs": probe(proofs=()),
    "exchanges": captured(exchanges=()), "pass in fp64": captured(window=None), "rows": captured(rows={}),
    "sketches": lambda record: replace(record, arrays={"sketches": {}}),
}  # fmt: skip


def elsewhere(record: LoadedRecord) -> LoadedRecord:
    """Return the record as of a machine whose kernels round differently."""
    machine = record.record.fingerprint
    cpu = machine.cpu.model_copy(update={"isa": "AVX2", "model": "another"})
    changed = {"fingerprint": machine.model_copy(update={"cpu": cpu}), "platform": "elsewhere"}
    return replace(record, record=record.record.model_copy(update=changed))


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedRecord, LoadedRecord]:
    folder = tmp_path_factory.mktemp("gates")
    for name in ("first", "second"):
        train(folder / name, "", start=folder / "start.safetensors")
    first, second = (plumbline.read_record(folder / name) for name in ("first", "second"))
    return first, second


@pytest.mark.parametrize("machine", [lambda record: record, elsewhere], ids=["same", "other"])
def test_two_whole_records_pass(records: tuple[LoadedRecord, LoadedRecord], machine: Change) -> None:
    assert plumbline.compare(records[0], machine(records[1]), throughput=False).verdict == "pass"


@pytest.mark.parametrize("machine", [lambda record: record, elsewhere], ids=["same", "other"])
def test_two_records_that_show_no_loss_pass(records: tuple[LoadedRecord, LoadedRecord], machine: Change) -> None:
    first, second = (WITHOUT["known losses"](record) for record in records)
    assert plumbline.compare(first, machine(second), throughput=False).verdict == "pass"


@pytest.mark.parametrize("machine", [lambda record: record, elsewhere], ids=["same", "other"])
@pytest.mark.parametrize("name", WITHOUT)
def test_a_record_without_evidence_passes_no_gate(
    records: tuple[LoadedRecord, LoadedRecord], name: str, machine: Change
) -> None:
    lacking = machine(WITHOUT[name](records[1]))
    outcomes = {"sketches": "invalid", "losses": "invalid", "known losses": "inconclusive"}
    for sides in ((records[0], lacking), (lacking, records[0])):
        assert plumbline.compare(*sides, throughput=False).verdict == outcomes.get(name, "inconclusive")


@pytest.mark.parametrize(("error", "verdict"), [(2e-4, "pass"), (2e-2, "drift")])
def test_beside_equal_formulas_a_deep_models_gradients_may_round(
    records: tuple[LoadedRecord, LoadedRecord], error: float, verdict: str
) -> None:
    """Of honest programs of a peer's suite gradients differ by up to 9e-5 on another instruction set."""
    record = records[1]
    taps = [
        tap.model_copy(update={"sha256": tap.sha256[::-1]}) if (tap.stage, tap.step) == ("gradient", 0) else tap
        for tap in record.record.evidence.probe.taps
    ]
    sketch = record.sketches["sketch"].copy()
    places = [place for place, tap in enumerate(taps) if (tap.stage, tap.step) == ("gradient", 0)]
    sketch[places] *= 1 + error
    other = replace(probe(taps=tuple(taps))(record), arrays={"sketches": {"sketch": sketch}})
    assert plumbline.compare(records[0], elsewhere(other), throughput=False).verdict == verdict


def test_a_night_of_one_platform_without_a_baseline_judges_what_contradicts_itself(tmp_path: Path) -> None:
    for fault in ("", "accumulates"):
        train(tmp_path / (fault or "plain"), fault, start=tmp_path / "start.safetensors")
    plain, faulty = (plumbline.read_record(tmp_path / name) for name in ("plain", "accumulates"))
    assert judge_round({"one": plain}, "one", {})["one"].verdict == "pass"
    result = judge_round({"one": faulty}, "one", {})["one"]
    assert result.verdict == "drift"
    assert [(cause.code, cause.sure) for cause in result.causes] == [("gradient", "confirmed")]


def test_without_timed_steps_a_demanded_throughput_is_inconclusive(
    records: tuple[LoadedRecord, LoadedRecord],
) -> None:
    assert plumbline.compare(*records, throughput="demanded").verdict == "inconclusive"
