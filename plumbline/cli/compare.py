"""`plumbline compare REFERENCE CANDIDATE`: judge two records on disk."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plumbline.cli.options import say
from plumbline.errors import ConfigurationError
from plumbline.judge import compare
from plumbline.judge.reruns import rerun_problem
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.evidence import SpeedEvidence
from plumbline.schema.suite import Gates, read_suite
from plumbline.schema.verdict import Finding, Judgement, Note, exit_code

__all__ = ["register", "run"]


_NOTHING_ELSE = "only throughput can be compared; if the reference is the same platform's baseline, use --throughput"


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "compare", help="judge two records: verdict, first divergence, cause", description=__doc__
    )
    parser.add_argument("reference", type=Path, help="folder of the reference record")
    parser.add_argument("candidate", type=Path, help="folder of the record to judge")
    parser.add_argument("--suite", type=Path, help="a suite file whose [gates] are used")
    parser.add_argument(
        "--throughput", action="store_true", help="the reference is this platform's baseline: judge throughput too"
    )
    parser.add_argument("--rerun", type=Path, help="a second run of the candidate, to confirm a drop")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare two records, print the judgement, and return its exit code."""
    gates = read_suite(args.suite).gates if args.suite else Gates()
    reference, candidate = load_record(args.reference), load_record(args.candidate)
    confirms, problem = _confirming(args.rerun, candidate) if args.rerun else (None, "")
    judgement = compare(
        reference, candidate, gates, against=f"record {reference.record.record_id}",
        throughput="demanded" if args.throughput or args.rerun is not None else False, confirms=confirms,
    )  # fmt: skip
    if problem:
        text = f"the rerun {problem}: it neither confirms nor refutes a drop"
        judgement = judgement.replace(notes=(*judgement.notes, Note(text=text)))
    if not judgement.findings:
        # Every other part that both records contain has findings.
        judgement = judgement.replace(notes=(*judgement.notes, Note(code="hint", text=_NOTHING_ELSE)))
    if args.json:
        print(json.dumps(judgement.to_json(), indent=2))
    else:
        _print(judgement)
    return int(exit_code(judgement.verdict))


def _confirming(rerun: Path, candidate: LoadedRecord) -> tuple[SpeedEvidence | None, str]:
    """Return the second run's speed evidence, or why it cannot confirm; raise for a different platform."""
    loaded = load_record(rerun)
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
    raise ConfigurationError(text, where=str(rerun), key="--rerun", hint="use a second run of the candidate")


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
        yield f"  cause: {cause.code} ({cause.sure}): {cause.why}"
        for line in (*cause.evidence, *(f"suspect {name}" for name in cause.suspects), *cause.tried):
            yield f"    {line}"
    for finding in judgement.findings:
        detail = f": {finding.detail}" if finding.detail else ""
        yield f"  {finding.outcome} {finding.check} {finding.metric}{_measured(finding)}{detail}".rstrip()
    for note in judgement.notes:
        yield f"  {note}"


def _measured(finding: Finding) -> str:
    """Return a number with its limit, or a text with the reference's text."""
    if isinstance(finding.observed, str) and isinstance(finding.limit, str):
        return f": {finding.limit} → {finding.observed}"
    limit = "" if finding.limit is None else f" (limit {finding.limit})"
    return limit if finding.observed is None else f" {finding.observed}{limit}"
