"""Baselines as a round reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from plumbline.baseline import BaselineBook
from plumbline.central import CentralStore
from plumbline.central.central_store import artifact_key
from plumbline.report.sentences import sentence_of
from plumbline.report.terminal import next_step
from plumbline.rounds import Round
from plumbline.rounds.baselines import name_changed_tasks, read_baselines
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.plan import MAIN, Assignment
from plumbline.schema.fact import fact
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.verdict import Note, PlatformResult, RoundVerdict
from tests.memory_store import MemoryStore
from tests.record_parts import write_arrays
from tests.unit.judge.made_records import whole
from tests.unit.rounds.test_outcome import make_round


def test_a_baseline_is_read_with_its_parts_and_a_damaged_one_is_said(tmp_path: Path) -> None:
    central, made, folder = CentralStore(MemoryStore()), whole(), tmp_path / "made"
    parts = write_arrays(folder, made.arrays)
    record = made.record.replace(parts=[part.to_json() for part in parts], platform="aws")
    (folder / RECORD_NAME).write_text(record.model_dump_json())
    central.put_record(folder)
    BaselineBook(central).accept(record)
    round_ = Round("20261120-020000-abc", make_round().suite, {"w": record.spec})
    found, unreadable = read_baselines(round_, central, tmp_path / "into")
    assert {name: one.record.record_id for name, one in found["w"].items()} == {"aws": record.record_id}
    assert found["w"]["aws"].batches.keys() == made.arrays["batches"].keys()
    assert unreadable == {"w": {}}
    assert (tmp_path / "into" / "baselines").is_dir()
    central.store.delete(artifact_key(parts[0].sha256))
    found, unreadable = read_baselines(round_, central, tmp_path / "again")
    assert (found, list(unreadable["w"])) == ({"w": {}}, ["aws"])


def test_a_changed_task_is_named_instead_of_a_baseline_that_is_missing(tmp_path: Path) -> None:
    """Whoever changes a key or rows after the first accepted night read `no baseline yet`, beside a pass."""
    central, made, folder = CentralStore(MemoryStore()), whole(), tmp_path / "made"
    parts = write_arrays(folder, made.arrays)
    record = made.record.replace(parts=[part.to_json() for part in parts], platform="aws")
    (folder / RECORD_NAME).write_text(record.model_dump_json())
    central.put_record(folder)
    workload = record.spec.workload
    spec = record.spec.replace(batch_size=record.spec.batch_size * 2)
    tonight = replace(made, record=record.replace(record_id="tonight", spec=spec, spec_sha256=spec.digest))
    gathered = GatheredRecords(records={Assignment("aws", workload, MAIN): tonight})
    lacking = PlatformResult(verdict="pass", notes=[Note(code="no-baseline", text=fact("round.no-baseline"))])
    round_ = Round("20261120-020000-abc", make_round().suite, {workload: spec})

    def note(into: str = "into") -> str:
        named = name_changed_tasks(round_, central, gathered, {workload: {"aws": lacking}}, tmp_path / into)
        (found,) = named[workload]["aws"].notes
        assert found.code == "no-baseline"
        return sentence_of(found.text)

    assert note() == sentence_of(lacking.notes[0].text)  # none was ever accepted
    BaselineBook(central).accept(record)
    changed = f"batch_size {record.spec.batch_size} → {spec.batch_size}"
    assert note().startswith(f"the task has changed since the accepted baseline {record.record_id}")
    assert note().endswith(changed)
    verdict = RoundVerdict(
        round="r", suite="nightly", verdict="pass",
        platforms=name_changed_tasks(round_, central, gathered, {workload: {"aws": lacking}}, tmp_path / "x")[workload],
    )  # fmt: skip
    assert changed in next_step(verdict, "suite.toml")
    central.store.delete(artifact_key(parts[0].sha256))
    assert note("damaged") == sentence_of(lacking.notes[0].text)
