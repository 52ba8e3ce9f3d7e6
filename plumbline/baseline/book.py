"""The baselines in the central store: read, and changed by compare-and-swap so that no decision is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from plumbline.baseline.schema import Baseline, Note, restored, with_record, without_record
from plumbline.central import CentralStore
from plumbline.digest import canonical_json
from plumbline.errors import ConfigurationError, InvalidInputError, UnavailableError
from plumbline.schema.base import read_model
from plumbline.schema.record import RunRecord
from plumbline.stores.base import PreconditionFailedError

__all__ = ["BaselineBook", "baseline_key"]

_FOLDER = "baselines"
_ATTEMPTS = 8


def baseline_key(spec_sha256: str, platform: str) -> str:
    """Where a baseline lies in the central store."""
    return f"{_FOLDER}/{spec_sha256}/{platform}.json"


class BaselineBook:
    """The approved records of all RunSpecs and platforms."""

    def __init__(self, central: CentralStore) -> None:
        self._central = central

    def read(self, spec_sha256: str, platform: str) -> Baseline | None:
        """The baseline, or `None` if none was accepted yet or all were rejected."""
        key = baseline_key(spec_sha256, platform)
        found = self._central.read_pointer(key)
        baseline = self._parsed(key, found[0]) if found is not None else None
        return baseline if baseline is not None and baseline.records else None

    def current(self, spec_sha256: str, platforms: Iterable[str]) -> dict[str, Baseline]:
        """The baselines of one RunSpec, of those platforms that have one."""
        found = {name: self.read(spec_sha256, name) for name in platforms}
        return {name: baseline for name, baseline in found.items() if baseline is not None}

    def list(self) -> tuple[tuple[Baseline, ...], dict[str, str]]:
        """Every baseline of the store, in the order of their keys; and of those that are damaged, by key, why."""
        found: dict[str, Baseline] = {}
        damaged: dict[str, str] = {}
        for info in [info for info in self._central.store.list(f"{_FOLDER}/") if info.key.endswith(".json")]:
            try:
                data = self._central.read_pointer(info.key)
                if data is not None:
                    found[info.key] = self._parsed(info.key, data[0])
            except InvalidInputError as error:
                damaged[info.key] = str(error)
        return tuple(one for one in found.values() if one.records), damaged

    def everything(self) -> tuple[Baseline, ...]:
        """Every readable baseline of the store, those without an accepted record included."""
        found = []
        for info in [info for info in self._central.store.list(f"{_FOLDER}/") if info.key.endswith(".json")]:
            data = self._central.read_pointer(info.key)
            baseline = self._sound(info.key, data[0]) if data is not None else None
            found += [baseline] if baseline is not None else []
        return tuple(found)

    def _sound(self, key: str, data: bytes) -> Baseline | None:
        """One that is damaged counts as none: the round says so of its platform, and accepting another mends it."""
        try:
            return self._parsed(key, data)
        except InvalidInputError:
            return None

    def accept(self, record: RunRecord, note: Note | None = None) -> Baseline:
        """Approve a record; `InvalidInputError` for one that nothing can be held against."""
        problem = _unfit(record)
        if problem:
            raise InvalidInputError(problem, where=record.record_id, hint="accept a record of a completed training")
        empty = Baseline(spec_sha256=record.spec_sha256, platform=record.platform, workload=record.spec.workload)
        key = baseline_key(record.spec_sha256, record.platform)
        return self._change(key, lambda baseline: with_record(baseline or empty, record, note))

    def reject(
        self, spec_sha256: str, platform: str, record_id: str | None = None, note: Note | None = None
    ) -> Baseline:
        """Take a record out of a baseline, the current one unless another is named."""

        def change(baseline: Baseline | None) -> Baseline:
            if baseline is None or not baseline.records:
                raise ConfigurationError("has no accepted record", where=f"baseline of {platform}")
            name = record_id or baseline.current
            if name is None or name not in {one.record_id for one in baseline.records}:
                hint = "`plumbline baseline show` lists them"
                raise ConfigurationError(f"{name} is none of its records", where=f"baseline of {platform}", hint=hint)
            return without_record(baseline, name, note)

        return self._change(baseline_key(spec_sha256, platform), change)

    def restore(
        self, spec_sha256: str, platform: str, record_id: str | None = None, note: Note | None = None
    ) -> Baseline:
        """Put a rejected record back, the one rejected last unless another is named."""

        def change(baseline: Baseline | None) -> Baseline:
            names = [one.record_id for one in baseline.rejected] if baseline is not None else []
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
            found = self._central.read_pointer(key)
            changed = change(self._sound(key, found[0]) if found else None)
            try:
                self._central.swap_pointer(key, canonical_json(changed.to_json()), found[1] if found else None)
            except PreconditionFailedError:
                continue
            return changed
        raise UnavailableError("others keep changing it", where=self._central.store.url, key=key)


def _unfit(record: RunRecord) -> str:
    if record.exit.status != "completed":
        return f"the training failed: {record.exit.message or record.exit.code}"
    if record.experiment is not None:
        return "is the record of an experiment, not of a training"
    missing = [part for part in record.spec.parts if getattr(record.evidence, part) is None]
    return f"holds no evidence of {', '.join(missing)}" if missing else ""
