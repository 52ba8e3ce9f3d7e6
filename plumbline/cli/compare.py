"""`plumbline compare REFERENCE CANDIDATE`: judge two records, of folders or of a store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from plumbline.cli.options import check_file, say
from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.stores import ObjectMissingError, open_store
from plumbline.judge import compare
from plumbline.judge.rounds import rerun_problem
from plumbline.judge.spec_differences import named_rows
from plumbline.night.central import CentralStore
from plumbline.night.central.outbox import RECORDS, fetch_record
from plumbline.night.rounds.row_places import placed_rows, row_lines
from plumbline.records import LoadedRecord, load_record
from plumbline.report.html import compare_page
from plumbline.report.sentences import note_line, sentence_of, spoken
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.fact import Statement, fact
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.suite import Gates, Suite, read_suite
from plumbline.schema.verdict import Finding, Judgement, Note, exit_code

_NOTHING_ELSE = "only throughput can be compared; if the reference is the same platform's baseline, use --throughput"


def register(subparsers: Any) -> None:
    """Add the command `compare` to the parser."""
    parser = subparsers.add_parser(
        "compare", help="judge two records: verdict, first divergence, cause", description=__doc__
    )
    parser.add_argument("reference", help="the reference record: folder, STORE-URL/records/ID, or with --suite an id")
    parser.add_argument("candidate", help="the record to judge: likewise")
    parser.add_argument("--suite", type=Path, help="a suite file whose [gates] are used, and whose store has the ids")
    parser.add_argument(
        "--throughput", action="store_true", help="the reference is this platform's baseline: judge throughput too"
    )
    parser.add_argument("--rerun", help="a second run of the candidate, to confirm a drop")
    parser.add_argument(
        "--data",
        metavar="URL",
        help="the reference's data store, to name rows by file, line and text (default: the suite's)",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the judgement as a page, with charts")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare two records, print the judgement, and return its exit code."""
    suite = read_suite(args.suite) if args.suite else None
    if args.html:
        check_file(args.html, option="--html")
    with scratch_folder() as folder:
        judgement = _judged(args, suite, folder)
    if args.json:
        print(json.dumps(spoken(judgement.to_json()), indent=2))
    else:
        _print(judgement)
    return int(exit_code(judgement.verdict))


def _judged(args: argparse.Namespace, suite: Suite | None, folder: Path) -> Judgement:
    """Judge the candidate; records from a store are downloaded to `folder`."""
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
    if args.html:
        args.html.write_text(compare_page(judgement, reference, candidate), encoding="utf-8")
    return judgement


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
    if "://" not in name and (suite is None or Path(name).exists()):
        return load_record(Path(name))
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


def _print(judgement: Judgement) -> None:
    for line in _lines(judgement):
        say(line)


def _lines(judgement: Judgement) -> Iterator[str]:
    yield judgement.verdict
    if judgement.first_divergence:
        place = judgement.first_divergence
        step = "" if place.step is None else f" at step {place.step}"
        yield f"  first divergence: {place.stage}{step}" + (f", {place.at}" if place.at else "")
    for cause in judgement.causes:
        yield f"  cause: {cause.code} ({cause.sure}): {sentence_of(cause.why)}"
        for line in (*cause.evidence, *(f"suspect {name}" for name in cause.suspects), *cause.tried):
            yield f"    {sentence_of(line)}"
    for finding in judgement.findings:
        detail = f": {sentence_of(finding.detail)}" if finding.detail else ""
        yield f"  {finding.outcome} {finding.check} {sentence_of(finding.metric)}{_measured(finding)}{detail}".rstrip()
    for note in judgement.notes:
        yield f"  {note_line(note)}"


def _measured(finding: Finding) -> str:
    """Format a finding's measured value, with its limit or reference."""
    if isinstance(finding.observed, str) and isinstance(finding.limit, str):
        return f": {finding.limit} → {finding.observed}"
    limit = "" if finding.limit is None else f" (limit {finding.limit})"
    return limit if finding.observed is None else f" {finding.observed}{limit}"
