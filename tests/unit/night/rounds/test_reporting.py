"""Report of a round with more records than memory has room for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from plumbline.night.central import CentralStore
from plumbline.night.rounds import Assignment, Round
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.night_cost import with_usage
from plumbline.night.rounds.plan import MAIN
from plumbline.night.rounds.reporting import write_report
from plumbline.records import limit_memory, load_record, loaded_record
from plumbline.schema.record import RECORD_NAME, RunRecord
from tests.memory_store import MemoryStore
from tests.unit.report import samples
from tests.unit.suites import suite_of

from .whole_round import NAMES, ROUND


def test_a_report_reads_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more records than memory has room for, each look at them would read all of them again."""
    reads: Counter[str] = Counter()
    read_record = loaded_record.read_record

    def counted(folder: Path, **how: bool) -> RunRecord:
        reads[folder.name] += 1
        return read_record(folder, **how)

    monkeypatch.setattr(loaded_record, "read_record", counted)
    monkeypatch.setattr(loaded_record, "_MAX_IN_MEMORY", len(NAMES))
    records = {}
    for name in NAMES:
        for workload in ("a", "b", "c"):
            item = samples.record(name, workload=workload, record_id=f"{name}-{workload}")
            folder = tmp_path / item.record.record_id
            folder.mkdir()
            (folder / RECORD_NAME).write_text(item.record.model_dump_json(), "utf-8")
            records[Assignment(name, workload, MAIN)] = limit_memory(replace(load_record(folder), arrays=item.arrays))
    suite = suite_of(*NAMES, workloads=("a", "b", "c"))
    round_ = Round(ROUND, suite, {workload: samples.spec(workload) for workload in "abc"})
    verdict = samples.verdict_of("pass", {name: samples.passing() for name in NAMES})
    reads.clear()
    write_report(round_, verdict, GatheredRecords(records), {}, CentralStore(MemoryStore("memory://central")))
    assert set(reads.values()) == {1}
    result = with_usage(verdict, GatheredRecords(records), {"aws": 200.0}).platforms["aws"]
    assert (result.machine_seconds, result.waited_seconds) == (3 * 41, 200 - 3 * 41)
    assert set(reads.values()) == {2}
