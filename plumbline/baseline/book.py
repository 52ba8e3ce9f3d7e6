"""Baselines in the central store, changed by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from plumbline.baseline.schema import Baseline, DecisionNote, restored, with_record, without_record
from plumbline.central import CentralStore
from plumbline.digest import canonical_json
from plumbline.errors import ConfigurationError, InvalidInputError, UnavailableError
from plumbline.schema.base import read_model
from plumbline.schema.record import RunRecord
from plumbline.stores.protocol import PreconditionFailedError

_FOLDER = "baselines"
_ATTEMPTS = 8


def baseline_key(spec_sha256: str, platform: str) -> str:
    """Return a baseline's key in the central store."""
    return f"{_FOLDER}/{spec_sha256}/{platform}.json"


class BaselineBook:
    """All baselines in the central store, by RunSpec and platform."""

    def __init__(self, central: CentralStore) -> None:
        self._central = central

    def read(self, spec_sha256: str, platform: str) -> Baseline | None:
        """Return the baseline; `None` without accepted records."""
        key = baseline_key(spec_sha256, platform)
        pointer = self._central.read_pointer(key)
        baseline = self._parsed(key, pointer[0]) if pointer is not None else None
        return baseline if baseline is not None and baseline.records else None

    def current(self, spec_sha256: str, platforms: Iterable[str]) -> dict[str, Baseline]:
        """Return the existing baselines of a RunSpec by platform."""
        baselines = {name: self.read(spec_sha256, name) for name in platforms}
        return {name: baseline for name, baseline in baselines.items() if baseline is not None}

    def list(self) -> tuple[tuple[Baseline, ...], dict[str, str]]:
        """Return all baselines, and the reasons of damaged ones by key."""
        baselines: dict[str, Baseline] = {}
        damaged: dict[str, str] = {}
        for info in [info for info in self._central.store.list(f"{_FOLDER}/") if info.key.endswith(".json")]:
            try:
                data = self._central.read_pointer(info.key)
                if data is not None:
                    baselines[info.key] = self._parsed(info.key, data[0])
            except InvalidInputError as error:
                damaged[info.key] = str(error)
        return tuple(baseline for baseline in baselines.values() if baseline.records), damaged

    def everything(self) -> tuple[Baseline, ...]:
        """Return every readable baseline, also without accepted records."""
        baselines = []
        for info in [info for info in self._central.store.list(f"{_FOLDER}/") if info.key.endswith(".json")]:
            data = self._central.read_pointer(info.key)
            baseline = self._sound(info.key, data[0]) if data is not None else None
            baselines += [baseline] if baseline is not None else []
        return tuple(baselines)

    def _sound(self, key: str, data: bytes) -> Baseline | None:
        """Return the baseline, or `None` if damaged; accepting a record repairs it."""
        try:
            return self._parsed(key, data)
        except InvalidInputError:
            return None

    def accept(self, record: RunRecord, note: DecisionNote | None = None) -> Baseline:
        """Approve a record; raise `InvalidInputError` if it is unfit as a reference."""
        problem = _unfit(record)
        if problem:
            raise InvalidInputError(problem, where=record.record_id, hint="accept a record of a completed training")
        empty = Baseline(spec_sha256=record.spec_sha256, platform=record.platform, workload=record.spec.workload)
        key = baseline_key(record.spec_sha256, record.platform)
        return self._change(key, lambda baseline: with_record(baseline or empty, record, note))

    def reject(
        self, spec_sha256: str, platform: str, record_id: str | None = None, note: DecisionNote | None = None
    ) -> Baseline:
        """Remove a record from a baseline, by default the current one."""

        def change(baseline: Baseline | None) -> Baseline:
            if baseline is None or not baseline.records:
                raise ConfigurationError("has no accepted record", where=f"baseline of {platform}")
            name = record_id or baseline.current
            if name is None or name not in {record.record_id for record in baseline.records}:
                hint = "`plumbline baseline show` lists them"
                raise ConfigurationError(
                    f"does not contain the record {name}", where=f"baseline of {platform}", hint=hint
                )
            return without_record(baseline, name, note)

        return self._change(baseline_key(spec_sha256, platform), change)

    def restore(
        self, spec_sha256: str, platform: str, record_id: str | None = None, note: DecisionNote | None = None
    ) -> Baseline:
        """Restore a rejected record, by default the last one rejected."""

        def change(baseline: Baseline | None) -> Baseline:
            names = [entry.record_id for entry in baseline.rejected] if baseline is not None else []
            name = record_id or (names[-1] if names else None)
            if baseline is None or name is None or name not in names:
                hint = "`plumbline baseline log` lists the rejected records"
                raise ConfigurationError("has no such rejected record", where=f"baseline of {platform}", hint=hint)
            return restored(baseline, name, note)

        return self._change(baseline_key(spec_sha256, platform), change)

    def _parsed(self, key: str, data: bytes) -> Baseline:
        return read_model(Baseline, data, where=f"{self._central.store.url}/{key}")

    def _change(self, key: str, change: Callable[[Baseline | None], Baseline]) -> Baseline:
        for _ in range(_ATTEMPTS):
            pointer = self._central.read_pointer(key)
            changed = change(self._sound(key, pointer[0]) if pointer else None)
            try:
                self._central.swap_pointer(key, canonical_json(changed.to_json()), pointer[1] if pointer else None)
            except PreconditionFailedError:
                continue
            return changed
        raise UnavailableError("other writers keep changing the document", where=self._central.store.url, key=key)


def _unfit(record: RunRecord) -> str:
    if record.exit.status != "completed":
        return f"the training failed: {record.exit.message or record.exit.code}"
    if record.experiment is not None:
        return "is the record of an experiment, not of a training"
    missing = [part for part in record.spec.parts if getattr(record.evidence, part) is None]
    return f"contains no evidence of {', '.join(missing)}" if missing else ""
