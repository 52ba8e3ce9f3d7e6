"""What two sources of one round gave, and which reruns a night asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plumbline.baseline import BaselineBook
from plumbline.central import CentralStore
from plumbline.central.central_store import artifact_key
from plumbline.history import Answers
from plumbline.history.metrics import METRICS
from plumbline.history.night import LineDecision, call_entry, judge_lines
from plumbline.history.segments import lines_of
from plumbline.rounds import Round
from plumbline.rounds.baselines import read_baselines
from plumbline.rounds.gathered import Absence, GatheredRecords
from plumbline.rounds.nights import NightDecisions, night_reruns
from plumbline.rounds.plan import Assignment
from plumbline.schema.record import RECORD_NAME
from tests.memory_store import MemoryStore
from tests.record_parts import write_arrays
from tests.unit.history.nights import ALLOWED, noise, series_of
from tests.unit.judge.conftest import make_record
from tests.unit.judge.made_records import whole
from tests.unit.rounds.test_outcome import make_round

LEFT, RIGHT = Assignment("aws", "w", "main"), Assignment("azure", "w", "main")


def test_the_union_of_two_sources_has_all_of_both_and_the_second_ones_word() -> None:
    first = GatheredRecords({LEFT: make_record()}, {RIGHT: Absence("no worker")}, {LEFT: ("a",), RIGHT: ("b",)})
    second = GatheredRecords({RIGHT: make_record()}, {LEFT: Absence("late")}, {RIGHT: ("c",)})
    both = first.plus(second)
    assert both.records == first.records | second.records
    assert both.absent == {RIGHT: Absence("no worker"), LEFT: Absence("late")}
    assert both.notes == {LEFT: ("a",), RIGHT: ("c",)}
    assert both.of("w") == {"aws": first.records[LEFT], "azure": second.records[RIGHT]}
    assert both.of("w", "rerun") == both.of("other") == {}


def loss_of_eight_nights() -> LineDecision:
    """Return a night's decision that asks for reruns."""
    series = series_of(noise(1, 48) / (1 + 0.05 * (np.arange(48) >= 40)))
    (decided,) = judge_lines(lines_of(series, METRICS), ALLOWED, software={("bert", "throughput"): "equal"})
    return decided


@pytest.mark.parametrize(("count", "names"), [(1, ["rerun"]), (3, ["rerun", "rerun-2", "rerun-3"])])
def test_a_night_asks_for_as_many_reruns_as_the_suite_has(count: int, names: list[str]) -> None:
    nights = NightDecisions({"left": (loss_of_eight_nights(),)})
    assert [(one.platform, one.workload, one.what) for one in night_reruns(nights, count)] == [
        ("left", "bert", name) for name in names
    ]
    assert len(night_reruns(nights)) == 4


def test_a_shift_within_the_step_is_no_new_call() -> None:
    series = series_of(noise(1, 48) / (1 + 0.05 * (np.arange(48) >= 40)))
    key = ("bert", "throughput")
    lines = lines_of(series, METRICS)
    tonight = tuple(lines[0].metric.scores(lines[0].values[-1:]).tolist()) * 4
    (decided,) = judge_lines(lines, ALLOWED, {key: Answers(reruns=tonight)}, {key: "equal"})
    entry = call_entry(decided)
    assert entry is not None
    assert (decided.verdict, entry.new, entry.size and entry.size > 0.03) == ("drift", True, True)
    shifted = call_entry(replace(decided, shifted=True))
    assert shifted is None or not shifted.new


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
