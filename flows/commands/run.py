"""`plumbline run SUITE`: one round, on the local stack or on a configured Prefect API; the main job."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.controlling import Display, Ended, follow
from plumbline.errors import (
    ConfigurationError,
    ExitCode,
    InconclusiveError,
    InvalidInputError,
    PlumblineError,
    UnavailableError,
)
from plumbline.localstack import Stack, is_local
from plumbline.localstack.process import Child, start, stop
from plumbline.localstack.signals import terminations_interrupt, undisturbed
from plumbline.report.terminal import verdict_table
from plumbline.rounds import new_round_id
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict, exit_code
from plumbline.workfolder import check_round_id

__all__ = ["register", "run"]

_CONTROLLER_RESTARTS = 2
_CANCEL_SECONDS = 60.0
_ERRORS: dict[int, type[PlumblineError]] = {
    ExitCode.USAGE: ConfigurationError,
    ExitCode.INCONCLUSIVE: InconclusiveError,
    ExitCode.INVALID: InvalidInputError,
}


def register(subparsers: Any) -> None:
    """Add `run`."""
    parser = subparsers.add_parser("run", help="one round of a suite over all its platforms", description=__doc__)
    parser.add_argument("suite", type=Path)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="on the local stack, whatever the work pools are called")
    where.add_argument("--api", action="store_true", help="on the Prefect API of this environment")
    parser.add_argument("--state", type=Path, default=Path(".plumbline"), help="folder of all state (%(default)s)")
    parser.add_argument("--port", type=int, help="port of the local Prefect server (default: a free one)")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="default: %(default)s")
    parser.add_argument("--round", default="", help="continue this round")
    parser.add_argument("--keep", action="store_true", help="leave the local stack up until Ctrl-C")
    parser.add_argument("--prepare", action="store_true", help="with --api: publish data, weights and recipes first")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one round; the exit code says how it ended."""
    suite = read_suite(args.suite)
    if args.round:
        check_round_id(args.round, where="--round")
    round_id = args.round or new_round_id(datetime.now(UTC), secrets.token_hex(3))
    local = args.local or (is_local(suite) and not args.api)
    with terminations_interrupt(), Display(f"round {round_id}") as display:
        if local:
            return _on_local_stack(args, suite, round_id, display)
        return _on_api(args, round_id, display)


def _command(args: argparse.Namespace, round_id: str, *options: str) -> list[str]:
    given = ["--suite", str(args.suite), "--round", round_id, "--state", str(args.state)]
    return [sys.executable, "-m", "flows.controller", *given, *options]


def _on_local_stack(args: argparse.Namespace, suite: Suite, round_id: str, display: Display) -> int:
    display.phase("stack")
    with Stack(suite, args.state, port=args.port, database=args.database, say=display.say) as stack:
        stack.servers.wait_for_stores()
        command = _command(args, round_id, "--prepare")
        # Its imports and the data go on while the server starts.
        child = stack.start_controller(command)
        stack.servers.wait_for_api()
        display.say(f"Prefect: {stack.ui_url}")
        stack.prepare_pools()
        stack.start_workers()
        ended = follow(child, display.on_event, stack.check)
        for _ in range(_CONTROLLER_RESTARTS):
            if not ended.killed:
                break
            display.say(f"the controller was {ended.how}; starting it again: it finds its trainings and goes on")
            ended = follow(stack.start_controller(command), display.on_event, stack.check)
        code = _tell(args, ended, child, display)
        if args.keep:
            display.say(f"the stack stays up until Ctrl-C: {stack.ui_url}")
            _wait_for_interrupt(stack)
        display.phase("stopping")
    return code


def _on_api(args: argparse.Namespace, round_id: str, display: Display) -> int:
    log = args.state.resolve() / "logs" / "controller.log"
    command = _command(args, round_id, *(["--prepare"] if args.prepare else []))
    child = start("controller", command, log=log, environment=os.environ, folder=Path.cwd(), controlled=True)
    try:
        ended = follow(child, display.on_event, lambda: None)
    finally:
        # Interrupted, it cancels its trainings first.
        with undisturbed():
            stop([child], grace_seconds=_CANCEL_SECONDS)
    return _tell(args, ended, child, display)


def _wait_for_interrupt(stack: Stack) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            stack.check()
            time.sleep(1.0)


def _tell(args: argparse.Namespace, ended: Ended, child: Child, display: Display) -> int:
    """Print the controller's verdict, or raise its error as ours; the exit code."""
    if ended.event is None:
        what = f"the controller {ended.how}: {child.last_line()}"
        raise UnavailableError(what, where="round", mend=f"its log is {child.log}")
    if ended.event.get("event") == "error":
        kind = _ERRORS.get(int(ended.event.get("exit_code", 3)), InconclusiveError)
        raise kind(str(ended.event.get("message", "")))
    display.phase("")
    display.stop()
    verdict = RoundVerdict.model_validate(ended.event["verdict"]).replace(timings=display.spent())
    if args.json:
        print(verdict.model_dump_json(), flush=True)
    else:
        print(verdict_table(verdict, colour=sys.stdout.isatty(), suite_file=str(args.suite)), flush=True)
    return int(exit_code(verdict.verdict))
