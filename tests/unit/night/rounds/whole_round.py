"""A round of three platforms with whole records in outboxes, up to the verdicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from plumbline.night.central import CentralStore
from plumbline.night.dispatch import Result
from plumbline.night.rounds import Assignment, Round
from plumbline.night.rounds.gathered import GatheredRecords, harvest
from plumbline.night.rounds.judging import apply_canary, judge_harvest, prove_round
from plumbline.night.rounds.night_findings import apply_nights, past_nights
from plumbline.night.rounds.nights import History, decide_nights
from plumbline.night.rounds.plan import MAIN
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_file
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.verdict import PlatformResult
from tests.memory_store import MemoryStore
from tests.record_parts import write_arrays
from tests.unit.suites import suite_of

NAMES = ("aws", "azure", "gcp")
ROUND = "20261122-020000-abc"
Content = dict[str, Any]


class WholeRound:
    """One round with outboxes in memory; `deliver` acts as a worker."""

    def __init__(self, folder: Path, made: LoadedRecord, round_id: str = ROUND) -> None:
        self.folder, self.made, self._harvests = folder, made, 0
        self.parts = write_arrays(folder / "parts", made.arrays)
        self.outboxes = {name: MemoryStore(f"memory://{name}") for name in NAMES}
        workload = made.record.spec.workload
        parts = {name: {} for name in made.record.spec.parts}
        self.suite = suite_of(*NAMES, workloads=(workload,), recipe={"seed": 7, **parts})
        self.round = Round(round_id, self.suite, {workload: made.record.spec}, "secret")

    def assignment(self, name: str) -> Assignment:
        return Assignment(name, self.made.record.spec.workload, MAIN)

    def content(self, name: str) -> Content:
        """Return the content of the platform's `record.json`."""
        order = self.round.order(self.assignment(name), 0)
        keys = ("record_id", "round_id", "platform", "nonce", "attempt")
        own = {key: getattr(order, key) for key in keys}
        return json.loads(self.made.record.model_dump_json()) | own | {"parts": [p.to_json() for p in self.parts]}

    def deliver(self, name: str, content: Content | bytes | None = None, **parts: Path) -> None:
        """Write a record into the platform's outbox; `parts` replace parts, with their right digests."""
        content = self.content(name) if content is None else content
        paths = {part.key: self.folder / "parts" / part.key for part in self.parts}
        for key, path in parts.items():
            paths[path.name] = path
            if not isinstance(content, bytes):
                entry = {"key": path.name, "size": path.stat().st_size, "sha256": digest_file(path)}
                content["parts"] = [part for part in content["parts"] if part["key"] != path.name] + [entry]
            assert path.name.startswith(key)
        objects = self.outboxes[name] = MemoryStore(f"memory://{name}")
        record_id = self.round.order(self.assignment(name), 0).record_id
        for key, path in paths.items():
            objects.create(f"records/{record_id}/{key}", path.read_bytes())
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        objects.create(f"records/{record_id}/{RECORD_NAME}", data)

    def gather(self, *names: str) -> GatheredRecords:
        results = {self.assignment(name): Result(0) for name in names or NAMES}
        self._harvests += 1
        central = CentralStore(MemoryStore("memory://central"))
        return harvest(self.round, results, self.outboxes, central, self.folder / f"into-{self._harvests}")

    def judge(self, gathered: GatheredRecords, proven: GatheredRecords | None = None) -> dict[str, PlatformResult]:
        """Judge as the round's task does, each platform also against its baseline.

        The canary tests the judge on the records in `proven`, by default on all.
        """
        made = self.made
        old = LoadedRecord(made.record.replace(record_id="old"), made.folder, made.arrays)
        baselines = {made.record.spec.workload: dict.fromkeys(NAMES, old)}
        nights = decide_nights(self.round, gathered, History(), baselines)
        results = apply_nights(
            judge_harvest(self.round, gathered, baselines, {}, past_nights(nights, 0.02)), nights, 0.02
        )
        results = apply_canary(results, prove_round(self.round, gathered if proven is None else proven))
        return results[self.made.record.spec.workload]
