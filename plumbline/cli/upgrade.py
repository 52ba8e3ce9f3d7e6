"""`plumbline upgrade SUITE --candidate LOCK`: train under two locks, and name the packages that differ."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.cli.options import is_quiet, say, summary
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import read_suite

if TYPE_CHECKING:
    from plumbline.environments.installed import Base
    from plumbline.upgrade.answer import UpgradeAnswer
    from plumbline.upgrade.session import Locks


_REPORTS = ("html", "junit", "summary", "comment")


def register(subparsers: Any) -> None:
    """Add the command `upgrade` to the parser."""
    parser = subparsers.add_parser("upgrade", help=summary(__doc__), description=__doc__)
    parser.add_argument("suite", type=Path)
    candidate = parser.add_mutually_exclusive_group(required=True)
    candidate.add_argument("--candidate", type=Path, metavar="LOCK", help="the lock to upgrade to")
    candidate.add_argument(
        "--image", metavar="IMAGE", help="with --api: the container image to upgrade to, REPOSITORY@sha256:DIGEST"
    )
    parser.add_argument(
        "--current",
        type=Path,
        metavar="LOCK",
        help="the present lock (default: $PLUMBLINE_LOCK, else the installed packages)",
    )
    parser.add_argument(
        "--python", default="", metavar="ENV",
        help="the environment to upgrade: an interpreter, or an environment's folder (default: this one)",
    )  # fmt: skip
    parser.add_argument(
        "--extra", action="append", metavar="NAME", help="use these extras and groups of the locks only (default: all)"
    )
    parser.add_argument("--workload", help="workload to train (default: the first workload with a probe)")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(".plumbline/upgrade"),
        help="folder for environments and results (%(default)s)",
    )
    parser.add_argument(
        "--pip", action="append", default=[], metavar="ARGUMENT", help="argument for the installer; may be repeated"
    )
    parser.add_argument("--max-trials", type=int, default=200, help="give up after this many trials (%(default)s)")
    parser.add_argument("--max-seconds", type=float, default=86400.0, help="start no trial after this time")
    parser.add_argument(
        "--releases", action="store_true", help="then name the release of each culprit in which its effect appears"
    )
    parser.add_argument(
        "--allow-unhashed", action="store_true",
        help="install packages of which the lock has no hash, in this upgrade: an index decides their content",
    )  # fmt: skip
    for name in _REPORTS:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write the report as {name}")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Judge the candidate, write the reports, and return the exit code."""
    from plumbline.environments.installed import base_of
    from plumbline.environments.package_store import claimed
    from plumbline.upgrade.campaign import UpgradeOptions
    from plumbline.upgrade.session import UpgradeSettings, judge_upgrade, workload_of

    if args.image:
        hint = "add --api, or name a lock with --candidate"
        raise ConfigurationError("an image trains in a work pool, not on this machine", key="--image", hint=hint)
    for name in ("max_trials", "max_seconds"):
        if not getattr(args, name) > 0:
            raise ConfigurationError("must be above 0", key=f"--{name.replace('_', '-')}")
    suite = read_suite(args.suite)
    workload = workload_of(suite, args.workload, str(args.suite))
    base = base_of(args.python)
    locks = _locks(args, base)
    options = UpgradeOptions(
        trials=args.max_trials, seconds=args.max_seconds, releases=args.releases, allow_unhashed=args.allow_unhashed
    )
    settings = UpgradeSettings(args.work.resolve(), tuple(args.pip), options, base)
    with claimed(args.work):
        answer = judge_upgrade(suite, workload, locks, settings, _progress)
    _write_reports(args, answer)
    if args.json:
        print(json.dumps(answer.document(), indent=2))
    else:
        _print(answer)
    return int(answer.exit_code)


def _locks(args: argparse.Namespace, base: Base) -> Locks:
    """Read both locks before any training."""
    from plumbline.environments.locks import read_lock
    from plumbline.upgrade.session import Locks

    current = args.current or base.lock
    candidate = read_lock(args.candidate, extras=args.extra, markers=base.markers)
    return Locks(candidate, read_lock(current, extras=args.extra, markers=base.markers) if current else None)


def _write_reports(args: argparse.Namespace, answer: UpgradeAnswer) -> None:
    from plumbline.upgrade import report

    for name in _REPORTS:
        path = getattr(args, name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(getattr(report, f"{name}_report")(answer), encoding="utf-8")


def _progress(line: str) -> None:
    if not is_quiet():
        say(line, to_stderr=True)


def _print(answer: UpgradeAnswer) -> None:
    from plumbline.upgrade.report import text_lines

    for line in text_lines(answer):
        say(line)
