"""`plumbline selfcheck`: train a tiny BERT here, and compare its bits."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from plumbline.errors import UnavailableError
from plumbline.launch import trainer_environment

_LINES = {
    "pass": "this stack trains correctly",
    "drift": "this stack computes wrong bits",
    "inconclusive": "an operation has no portable form",
    "unknown": "no digests are known for these versions",
}


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "selfcheck", help="train a tiny BERT here, and compare its bits", description=__doc__
    )
    parser.add_argument("--device", help="cpu, or cuda:N (default: the first GPU, if any)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which the check is stopped")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the check in a trainer process; return the verdict's exit code."""
    command = [sys.executable, "-m", "plumbline.train.selfcheck", *(["--device", args.device] if args.device else [])]
    try:
        done = subprocess.run(
            command, env=trainer_environment(), capture_output=True, text=True, timeout=args.timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"no answer after {args.timeout:g} s", where="selfcheck") from error
    document = _document(done.stdout)
    if document is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UnavailableError(f"the trainer failed: {last}", where="selfcheck", hint="run it with --debug")
    print(json.dumps(document) if args.json else _line(document))
    return done.returncode


def _document(output: str) -> dict[str, Any] | None:
    try:
        document: dict[str, Any] = json.loads(output)
    except ValueError:
        return None
    return document


def _line(document: dict[str, Any]) -> str:
    places = [f"{task}: {place}" for task, place in document["first_divergence"].items()]
    names = f"torch {document['torch']}, transformers {document['transformers']}, {document['device']}"
    near = [f"compared with the nearest formulas: {document['formulas']}"] if document["verdict"] == "unknown" else []
    more = "; ".join([*places, *document["unportable"], *near])
    return f"{document['verdict']}: {_LINES[document['verdict']]} ({names})" + (f": {more}" if more else "")
