"""`plumbline train --selfcheck`: train a tiny BERT here, and compare its numbers."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from plumbline.environments.launch import trainer_environment
from plumbline.environments.python_modules import module_command
from plumbline.schema.errors import UnavailableError
from plumbline.schema.extras import require_all

_SECONDS = 300.0
_LINES = {
    "pass": "this stack trains correctly",
    "drift": "this stack computes wrong numbers",
    "unknown": "no numbers are known for these versions",
}


def run(args: argparse.Namespace) -> int:
    """Run the self-check in a trainer process; return the verdict's exit code."""
    require_all("torch", "transformers")
    command = [
        *module_command(sys.executable, "plumbline.train.selfcheck"),
        *(["--device", args.device] if args.device else []),
    ]
    timeout = _SECONDS if args.timeout is None else args.timeout
    try:
        done = subprocess.run(
            command, env=trainer_environment(), capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"no answer after {timeout:g} s", where="--selfcheck") from error
    document = _document(done.stdout)
    if document is None:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UnavailableError(f"the trainer failed: {last}", where="--selfcheck", hint="run it with --debug")
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
    more = "; ".join([*places, *near])
    return f"{document['verdict']}: {_LINES[document['verdict']]} ({names})" + (f": {more}" if more else "")
