"""Baselines as a round reads them."""

from __future__ import annotations

from pathlib import Path

from plumbline.baseline import BaselineBook
from plumbline.central import CentralStore
from plumbline.central.central_store import artifact_key
from plumbline.rounds import Round
from plumbline.rounds.baselines import read_baselines
from plumbline.schema.record import RECORD_NAME
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
