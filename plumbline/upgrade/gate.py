"""The gate itself: train under the current lock and under the candidate's, and bisect when they differ."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from plumbline.errors import ExitCode, InconclusiveError
from plumbline.judge import compare, needs_rerun
from plumbline.launch import run_training
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.spec import RunSpec, write_spec
from plumbline.schema.suite import Gates
from plumbline.schema.verdict import Judgement
from plumbline.upgrade.bisect import Bisection, Outcome, bisect
from plumbline.upgrade.locks import Change
from plumbline.upgrade.overlay import Overlays

__all__ = ["Gate", "Upgrade", "summary"]

_RUN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What the gate found: the judgement of the whole candidate, and the packages if it drifts."""

    judgement: Judgement
    bisection: Bisection[Change] | None


class Gate:
    """Trains one spec with any subset of the changes applied, each in a folder of its own below `work`."""

    def __init__(self, spec: RunSpec, data: str, work: Path, overlays: Overlays, say: Callable[[str], None]) -> None:
        self._data = data
        self._work = work
        self._overlays = overlays
        self._say = say
        self._spec = work / "spec.json"
        self._count = 0
        shutil.rmtree(work, ignore_errors=True)
        write_spec(spec, self._spec)

    def train(self, changes: Sequence[Change]) -> LoadedRecord | None:
        """The record of a training with `changes` applied; `None` if that set cannot train at all."""
        self._count += 1
        name = f"trial-{self._count:02d}"
        out = self._work / name
        code = run_training(
            self._spec, out, data=self._data, cache=self._work.parent / "cache", platform="upgrade", record_id=name,
            environment=self._overlays.environment(changes), timeout_seconds=_RUN_SECONDS,
        )  # fmt: skip
        return load_record(out) if code == ExitCode.PASS else None

    def judge(self, changes: Sequence[Change], gates: Gates) -> Upgrade:
        """Current against candidate; on drift, the smallest set of changes that drifts by itself."""
        runs = [self._needed((), "the current lock"), self._needed((), "the current lock")]
        again = compare(runs[0], runs[1], gates, throughput=False)
        if again.verdict == "drift":
            # A trainer that does not agree with itself says nothing about an upgrade.
            return Upgrade(again, None)
        # Equal otherwise: what the machine gave one of them by luck must not count against the candidate.
        reference = min(runs, key=_samples_per_second)
        judgement = self._held_against(reference, self._needed(changes, "the candidate lock"), changes, gates)
        if judgement.verdict != "drift":
            return Upgrade(judgement, None)
        self._say(f"drift; bisecting {len(changes)} changed packages")
        return Upgrade(judgement, bisect(tuple(changes), lambda subset: self._trial(subset, reference, gates)))

    def _held_against(
        self, reference: LoadedRecord, record: LoadedRecord, changes: Sequence[Change], gates: Gates
    ) -> Judgement:
        """The judgement of one training; a slower one is trained once more before it is called drift."""
        judgement = compare(reference, record, gates)
        if not needs_rerun(judgement):
            return judgement
        again = self._needed(changes, "the same versions again, for it was slower")
        return compare(reference, record, gates, confirms=again.record.evidence.speed)

    def _needed(self, changes: Sequence[Change], what: str) -> LoadedRecord:
        self._say(f"training under {what}")
        record = self.train(changes)
        if record is None:
            raise InconclusiveError(f"the training under {what} did not finish", where=str(self._work))
        return record

    def _trial(self, subset: tuple[Change, ...], reference: LoadedRecord, gates: Gates) -> Outcome:
        record = self.train(subset)
        outcome: Outcome = "broken"
        if record is not None:
            outcome = "drift" if self._held_against(reference, record, subset, gates).verdict == "drift" else "pass"
        self._say(f"{outcome}: {', '.join(str(change) for change in subset)}")
        return outcome


def _samples_per_second(record: LoadedRecord) -> float:
    measured = record.record.evidence.speed
    return (measured.samples_per_second or 0.0) if measured else 0.0


def summary(upgrade: Upgrade) -> Mapping[str, object]:
    """The gate's result as JSON."""
    found = upgrade.bisection
    packages = (
        None
        if found is None
        else {
            "culprits": [str(change) for change in found.culprits],
            "others_pass": found.complement_passes,
            "trials": [
                {"changes": [str(change) for change in subset], "outcome": outcome} for subset, outcome in found.trials
            ],
        }
    )
    return {**upgrade.judgement.to_json(), "bisection": packages}
