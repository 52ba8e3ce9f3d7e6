"""Baselines of a round's platforms, read before judging."""

from __future__ import annotations

from pathlib import Path

from plumbline.judge.spec_differences import spec_findings
from plumbline.judge.whole import whole
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.plan import Round
from plumbline.records import LoadedRecord, limit_memory
from plumbline.schema.captured import Spec
from plumbline.schema.errors import CorruptDataError, InvalidInputError
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.verdict import PlatformResult

_MORE_LOOKS = 2
_MOST_CHANGES = 4

Unreadable = dict[str, dict[str, str]]
Results = dict[str, dict[str, PlatformResult]]


def read_baselines(
    round_: Round, central: CentralStore, into: Path
) -> tuple[dict[str, dict[str, LoadedRecord]], Unreadable]:
    """Return current baselines by workload and platform, and reasons of damaged ones.

    A damaged baseline affects no other platform.
    """
    baselines: dict[str, dict[str, LoadedRecord]] = {workload: {} for workload in round_.specs}
    unreadable: Unreadable = {workload: {} for workload in round_.specs}
    for platform in round_.suite.platforms:
        for workload, spec in round_.specs_of(platform).items():
            try:
                record = _current_again(central, spec, platform, into)
            except InvalidInputError as error:
                unreadable[workload][platform] = str(error)
                continue
            if record is not None:
                baselines[workload][platform] = record
    return baselines, unreadable


def _current_again(central: CentralStore, spec: Spec, platform: str, into: Path) -> LoadedRecord | None:
    """Return the current baseline's record, retrying damaged downloads."""
    for _ in range(_MORE_LOOKS):
        try:
            return _current(central, spec, platform, into)
        except CorruptDataError:
            continue
    return _current(central, spec, platform, into)


def _current(central: CentralStore, spec: Spec, platform: str, into: Path) -> LoadedRecord | None:
    baseline = BaselineBook(central).read(spec.digest, platform)
    if baseline is None or baseline.current is None:
        return None
    record = limit_memory(whole(central.get_record(baseline.current, into / "baselines")))
    record.read_parts()
    return record


def name_changed_tasks(
    round_: Round, central: CentralStore, gathered: GatheredRecords, results: Results, into: Path
) -> Results:
    """Note what changed in a platform's spec if no accepted baseline matches.

    A person who edits a data file or a key would otherwise read that there is no baseline, beside a pass.
    """
    lacking = [
        (workload, name)
        for workload, of in results.items()
        for name, result in of.items()
        if any(note.code == "no-baseline" for note in result.notes)
    ]
    book = BaselineBook(central).list()[0] if lacking else ()
    changed = {workload: dict(of) for workload, of in results.items()}
    for workload, name in lacking:
        own = [known for known in book if (known.platform, known.workload) == (name, workload)]
        own = [known for known in own if known.records[-1].suite in ("", round_.suite.name)]
        candidate = gathered.of(workload).get(name)
        if own and candidate is not None:
            newest = max(own, key=lambda known: known.records[-1].started_at).records[-1].record_id
            try:
                reference = central.get_record(newest, into / "baselines")
                text = fact("round.other-task", record=newest, changes=joined(_changes(reference, candidate)))
            except InvalidInputError:
                continue  # pruned or damaged: the note stays as it is
            result = changed[workload][name]
            notes = [note.replace(text=text) if note.code == "no-baseline" else note for note in result.notes]
            changed[workload][name] = result.replace(notes=notes)
    return changed


def _changes(reference: LoadedRecord, candidate: LoadedRecord) -> list[Statement]:
    """Describe the differences between two specs, including rows and labels."""
    return [
        finding.detail or fact("round.spec-key", key=finding.metric, before=finding.limit, after=finding.observed)
        for finding in spec_findings(reference, candidate)
        if finding.metric != "data.manifest_sha256"  # its rows follow
    ][:_MOST_CHANGES]
