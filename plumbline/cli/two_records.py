"""Two records of folders or of a store, and their judgement."""

from __future__ import annotations

import argparse
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from plumbline.cli.options import say
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.judge import compare
from plumbline.judge.alone import judge_alone
from plumbline.judge.rounds import rerun_problem
from plumbline.judge.spec_differences import named_rows
from plumbline.night.central import CentralStore
from plumbline.night.central.central_store import ARTIFACTS
from plumbline.night.central.outbox import RECORDS, fetch_record
from plumbline.night.rounds.row_places import placed_rows, row_lines
from plumbline.records import LoadedRecord, load_record
from plumbline.report.sentences import sentence_of
from plumbline.schema.errors import ConfigurationError, InvalidInputError, PlumblineError
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.suite import Gates, Suite
from plumbline.schema.verdict import Judgement, Note

_NOTHING_ELSE = "only throughput can be compared; if the reference is the same platform's baseline, use --throughput"


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """Judgement of two records, with both."""

    judgement: Judgement
    reference: LoadedRecord
    candidate: LoadedRecord


def judged(args: argparse.Namespace, suite: Suite | None, folder: Path) -> JudgedPair:
    """Judge the candidate, or one record by itself; records from a store are downloaded to `folder`."""
    if args.candidate is None:
        if args.rerun is not None or args.throughput:
            why = "needs a record to compare with"
            raise ConfigurationError(why, where="compare", key="--throughput, --rerun", hint="name a candidate")
        alone = _record(args.reference, suite, folder)
        return JudgedPair(judge_alone(alone), alone, alone)
    reference, candidate = (_record(name, suite, folder) for name in (args.reference, args.candidate))
    confirms: SpeedEvidence | None = None
    problem: Statement = ""
    if args.rerun:
        confirms, problem = _confirming(_record(args.rerun, suite, folder), args.rerun, candidate)
    judgement = compare(
        reference, candidate, suite.gates if suite else Gates(), against=f"record {reference.record.record_id}",
        throughput="demanded" if args.throughput or args.rerun is not None else False, confirms=confirms,
    )  # fmt: skip
    judgement = _with_places(judgement, reference, candidate, _data_store(args, suite, reference))
    if problem:
        text = fact("round.useless-rerun", problem=problem)
        judgement = judgement.replace(notes=(*judgement.notes, Note(text=text)))
    if not judgement.findings:
        # Every other part that both records contain has findings.
        judgement = judgement.replace(notes=(*judgement.notes, Note(code="hint", text=_NOTHING_ELSE)))
    return JudgedPair(judgement, reference, candidate)


def read_folder(folder: Path) -> LoadedRecord:
    """Load the record in `folder`; raise `ConfigurationError` if there is no such folder."""
    try:
        return load_record(folder)
    except InvalidInputError as error:
        if folder.is_dir():
            raise
        raise ConfigurationError(error.what, where=error.where, hint=error.hint) from error


def _data_store(args: argparse.Namespace, suite: Suite | None, reference: LoadedRecord) -> str:
    platform = suite.platforms.get(reference.record.platform) if suite else None
    return str(args.data or (platform.data if platform else ""))


def _with_places(judgement: Judgement, reference: LoadedRecord, candidate: LoadedRecord, url: str) -> Judgement:
    """Add file, line and text to the findings on different rows."""
    if not url or not any(finding.check in ("data.rows", "record.data") for finding in judgement.findings):
        return judgement
    try:
        store = open_store(url)
        if reference.record.spec_sha256 == candidate.record.spec_sha256:
            return placed_rows(judgement, reference, candidate, store)
        lines = row_lines(store, reference, named_rows(reference, candidate))
    except PlumblineError as error:
        say(f"plumbline: rows are not named by file and line: {error}", to_stderr=True)
        return judgement
    return judgement.replace(
        notes=(*judgement.notes, *(Note(text=f"reference: {sentence_of(line)}") for line in lines))
    )


def _record(name: str, suite: Suite | None, into: Path) -> LoadedRecord:
    """Load a record from a folder, an address or an id."""
    folder = Path(name)
    if "://" not in name and (folder.absolute().parent.parent / ARTIFACTS).is_dir() and folder.is_dir():
        name = f"file://{folder.absolute()}"  # of a central store, which keeps a record's parts by their digests
    elif "://" not in name and (suite is None or folder.exists()):
        return read_folder(folder)
    url, _, record_id = name.removesuffix(f"/{RECORD_NAME}").rstrip("/").rpartition(f"/{RECORDS}/")
    if "://" in name and not url:
        hint = f"STORE-URL/{RECORDS}/ID"
        raise ConfigurationError("is not the address of a record", where=name, hint=hint)
    store = open_store(url or (suite.store if suite else ""))
    for fetch in (CentralStore(store).get_record, partial(fetch_record, store)):
        with suppress(ObjectMissingError):
            return fetch(record_id, into)
    raise ConfigurationError(f"the record {record_id!r} does not exist", where=store.url)


def _confirming(loaded: LoadedRecord, where: str, candidate: LoadedRecord) -> tuple[SpeedEvidence | None, Statement]:
    """Return the second run's speed evidence, or why it cannot confirm. Raise for a different platform."""
    record = loaded.record
    if record.platform != candidate.record.platform:
        text = f"is a record of {record.platform!r}, the candidate is one of {candidate.record.platform!r}"
    elif record.evidence.speed is None:
        text = "has no speed part"
    elif record.fingerprint.hardware_class != candidate.record.fingerprint.hardware_class:
        own = candidate.record.fingerprint.hardware_class
        text = f"ran on {record.fingerprint.hardware_class}, the candidate on {own}"
    else:
        problem = rerun_problem(candidate, loaded)
        return (None, problem) if problem else (record.evidence.speed, "")
    raise ConfigurationError(text, where=where, key="--rerun", hint="use a second run of the candidate")
