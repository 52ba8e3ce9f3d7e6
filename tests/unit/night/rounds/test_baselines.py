"""Baselines as a round reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from plumbline.night.baseline import BaselineBook, DecisionNote
from plumbline.night.central import CentralStore
from plumbline.night.central.central_store import artifact_key
from plumbline.night.rounds import Round
from plumbline.night.rounds.baselines import name_changed_tasks, read_baselines
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.plan import MAIN, Assignment
from plumbline.night.rounds.series import accepted_times, read_history
from plumbline.records import load_record
from plumbline.report.sentences import sentence_of
from plumbline.report.terminal import next_step
from plumbline.schema.fact import fact
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.verdict import Note, PlatformResult, RoundVerdict
from tests.memory_store import MemoryStore
from tests.record_parts import write_arrays
from tests.unit.judge.made_records import whole
from tests.unit.night.rounds.test_outcome import make_round


def stored(folder: Path) -> tuple[CentralStore, RunRecord]:
    """Return a central store with the whole record of a platform, and this record."""
    central, made = CentralStore(MemoryStore()), whole()
    parts = write_arrays(folder, made.arrays)
    record = made.record.replace(parts=[part.to_json() for part in parts], platform="aws")
    (folder / RECORD_NAME).write_text(record.model_dump_json())
    central.put_record(load_record(folder))
    return central, record


def test_a_baseline_is_read_with_its_parts_and_a_damaged_one_is_said(tmp_path: Path) -> None:
    central, record = stored(tmp_path / "made")
    BaselineBook(central).accept(record)
    round_ = Round("20261120-020000-abc", make_round().suite, {"w": record.spec})
    found, unreadable = read_baselines(round_, central, tmp_path / "into")
    assert {name: one.record.record_id for name, one in found["w"].items()} == {"aws": record.record_id}
    assert found["w"]["aws"].batches.keys() == whole().arrays["batches"].keys()
    assert unreadable == {"w": {}}
    assert (tmp_path / "into" / "baselines").is_dir()
    central.store.delete(artifact_key(record.parts[0].sha256))
    found, unreadable = read_baselines(round_, central, tmp_path / "again")
    assert (found, list(unreadable["w"])) == ({"w": {}}, ["aws"])


def test_a_changed_task_is_named_instead_of_a_baseline_that_is_missing(tmp_path: Path) -> None:
    """Whoever changes a key or rows after the first accepted night read `no baseline yet`, beside a pass."""
    central, record = stored(tmp_path / "made")
    workload = record.spec.workload
    spec = record.spec.replace(batch_size=record.spec.batch_size * 2)
    tonight = replace(whole(), record=record.replace(record_id="tonight", spec=spec, spec_sha256=spec.digest))
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
    central.store.delete(artifact_key(record.parts[0].sha256))
    assert note("damaged") == sentence_of(lacking.notes[0].text)


def test_the_history_command_compares_with_the_accepted_nights_of_the_round() -> None:
    """An anchor that a person moved, or that the list of accepted records has lost, was the round's alone."""
    central, made = CentralStore(MemoryStore()), whole().record
    book = BaselineBook(central)
    for day in range(1, 5):
        name, start = f"202611{day:02}-020000-abc", made.started_at.replace(day=day)
        record = made.replace(record_id=f"r-{day}", round_id=name, platform="aws", started_at=start)
        book.accept(record, DecisionNote(as_anchor=day == 3))
    round_ = Round("20261120-020000-abc", make_round().suite, {"w": made.spec})
    of_round = read_history(round_, central).accepted["aws"]["w"]
    assert [time.day for time in of_round] == [3, 4]
    assert accepted_times(central)["aws"][made.spec.workload] == of_round
