"""`plumbline upgrade SUITE --candidate LOCK | --image IMAGE`: train under two locks, and name the packages that differ.

With `--api`, every platform of the suite trains under both.
"""

from __future__ import annotations

import argparse
import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from plumbline.cli import upgrade as on_this_machine
from plumbline.cli.display import Display
from plumbline.cli.options import say
from plumbline.environments.locks import LockFiles, load_lock
from plumbline.night.rounds import check_round_id, new_round_id
from plumbline.report.junit import junit_document
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.escape import printable
from plumbline.schema.suite import Suite, read_suite
from plumbline.upgrade.outcome import UpgradeOutcome, summary
from plumbline.upgrade.report import comment_report, html_report, junit_report, text_lines
from plumbline.upgrade.request import LOCK_FILES_NAME, MAX_INLINE_BYTES, check_image, command_locks

_CANCEL_SECONDS = 90.0
_HERE_ONLY = ("current", "extra", "pip", "python")


def register(subparsers: Any) -> None:
    """Add the command `upgrade`: the core parser plus options for workers."""
    on_this_machine.register(subparsers)
    parser = subparsers.choices["upgrade"]
    parser.add_argument(
        "--api", action="store_true", help="judge on every platform, through the server that PREFECT_API_URL names"
    )
    parser.add_argument(
        "--platform",
        action="append",
        default=[],
        metavar="NAME",
        help="with --api: only this platform; may be repeated",
    )
    parser.add_argument("--round", default="", metavar="NAME", help="with --api: name of the upgrade")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge the candidate here or on every platform; return the exit code."""
    if not args.api:
        return on_this_machine.run(args)
    for name in _HERE_ONLY:
        if getattr(args, name, None):
            raise ConfigurationError("is for this machine alone", key=f"--{name}", hint="leave it out, or --api")
    if args.image:
        check_image(args.image, key="--image")
    suite = read_suite(args.suite)
    upgrade_id = check_round_id(args.round, where="--round") if args.round else _new_id()
    with Display(f"upgrade {upgrade_id}") as display:
        outcome = _follow(args, suite, upgrade_id, display)
    _write_reports(args, outcome)
    if args.json:
        print(json.dumps(outcome.document(), indent=2))
    else:
        _print(outcome)
    return int(outcome.exit_code)


def _new_id() -> str:
    return new_round_id(datetime.now(UTC), secrets.token_hex(3))


def _follow(args: argparse.Namespace, suite: Suite, upgrade_id: str, display: Display) -> UpgradeOutcome:
    """Start the deployed flow, and return its outcome. An interruption cancels it."""
    from plumbline.tasks.prefect_client.api import server_errors, wait_for_api
    from plumbline.tasks.prefect_client.round_run import API_SECONDS, UpgradeRun

    candidate = {"image": args.image} if args.image else _candidate(load_lock(args.candidate), suite)
    parameters = {
        "candidate": candidate,
        "platforms": args.platform,
        "workload": args.workload or "",
        "max_trials": args.max_trials,
        "max_seconds": args.max_seconds,
        "releases": args.releases,
        "allow_unhashed": args.allow_unhashed,
    }
    wait_for_api(API_SECONDS, display.say)
    with server_errors(), UpgradeRun(suite, upgrade_id, parameters) as upgrade_run:
        upgrade_run.start(display.say)
        try:
            upgrade_run.follow(display)
        except KeyboardInterrupt:
            display.say("cancelling the upgrade")
            upgrade_run.cancel(_CANCEL_SECONDS, display)
            raise
        return upgrade_run.outcome()


def _candidate(lock: LockFiles, suite: Suite) -> dict[str, Any]:
    """Return the flow's candidate parameter: a small lock's text, else its URL."""
    from plumbline.data.stores import ensure_object, open_store

    data = lock.files[lock.name].encode()
    if len(lock.files) == 1 and len(data) <= MAX_INLINE_BYTES:
        return {"name": lock.name, "text": data.decode(), "sha256": digest_bytes(data)}
    data = lock.model_dump_json().encode()
    folder, key = command_locks(suite), f"{lock.digest}.json"
    ensure_object(open_store(folder), key, data)
    return {"name": LOCK_FILES_NAME, "url": f"{folder}/{key}", "sha256": digest_bytes(data)}


def _write_reports(args: argparse.Namespace, outcome: UpgradeOutcome) -> None:
    answers = {name: result.answer for name, result in outcome.platforms.items() if result.answer is not None}
    if args.summary:
        _write(args.summary, summary(outcome))
    if args.comment:
        _write(args.comment, "\n".join(f"**{name}**\n\n{comment_report(answer)}" for name, answer in answers.items()))
    if args.junit:
        _write(args.junit, _junit(outcome))
    if args.html:
        for name, answer in answers.items():
            path = args.html.with_name(f"{args.html.stem}-{name}{args.html.suffix}") if len(answers) > 1 else args.html
            _write(path, html_report(answer))


def _junit(outcome: UpgradeOutcome) -> str:
    """Return one JUnit document with a test suite per platform."""
    root = ET.Element("testsuites", name=f"plumbline upgrade {outcome.upgrade}")
    for name, result in outcome.platforms.items():
        if result.answer is not None:
            found = ET.fromstring(junit_report(result.answer))  # noqa: S314 - written by ourselves
            for suite in found.iter("testsuite"):
                suite.set("name", name)
                root.append(suite)
        else:
            suite = ET.SubElement(root, "testsuite", name=name, tests="1", failures="0", errors="1")
            case = ET.SubElement(suite, "testcase", name="verdict", classname="plumbline.upgrade")
            ET.SubElement(case, "error", message=printable(result.why)[:1000], type=result.verdict)
    return junit_document(root)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _print(outcome: UpgradeOutcome) -> None:
    print(f"{outcome.verdict}: upgrade {outcome.upgrade}")
    for name, result in outcome.platforms.items():
        lines = text_lines(result.answer) if result.answer is not None else iter([f"{result.verdict}: {result.why}"])
        say(f"{name}: {next(lines)}")
        for line in lines:
            say(line)
        for note in result.notes:
            say(f"  {note}", to_stderr=True)
