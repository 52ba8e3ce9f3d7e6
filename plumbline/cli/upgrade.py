"""`plumbline upgrade SUITE --candidate LOCK`: the same training under two locks; on drift, the package that made it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.errors import ConfigurationError, ExitCode
from plumbline.schema.suite import Suite, read_suite
from plumbline.schema.verdict import exit_code

if TYPE_CHECKING:
    from plumbline.upgrade.gate import Upgrade
    from plumbline.upgrade.locks import PackageChange

__all__ = ["register", "run"]

_OTHERS = {"pass": "pass", "drift": "drift too", "broken": "could not be judged"}


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "upgrade", help="train under two locks, and bisect a drift to the package", description=__doc__
    )
    parser.add_argument("suite", type=Path)
    parser.add_argument("--candidate", type=Path, required=True, metavar="LOCK", help="the lock file to upgrade to")
    parser.add_argument(
        "--current", type=Path, default=Path("locks/all.txt"), metavar="LOCK", help="the lock in force (%(default)s)"
    )
    parser.add_argument("--workload", help="which workload trains (default: the suite's first that has a probe)")
    parser.add_argument("--work", type=Path, default=Path(".plumbline/upgrade"), help="work folder (%(default)s)")
    parser.add_argument("--pip", action="append", default=[], metavar="ARGUMENT", help="passed on to pip install")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train under both locks, compare, bisect on drift; the verdict's exit code."""
    from plumbline.upgrade.gate import summary
    from plumbline.upgrade.locks import changes_between, read_lock
    from plumbline.upgrade.overlay import check_environment
    from plumbline.upgrade.work import claimed

    suite = read_suite(args.suite)
    name = args.workload or next((key for key, workload in suite.workloads.items() if workload.probe), "")
    if name not in suite.workloads or not suite.workloads[name].probe:
        raise ConfigurationError(
            f"no workload {name!r} with a probe", where=str(args.suite), hint="add [workloads.NAME.probe]"
        )
    current, candidate = read_lock(args.current), read_lock(args.candidate)
    changes = changes_between(current, candidate)
    if not changes:
        print(json.dumps({"verdict": "pass", "findings": [], "causes": [], "bisection": None}) if args.json else "pass")
        print("both locks pin the same versions", file=sys.stderr)
        return int(ExitCode.PASS)
    check_environment(current, changes, where=str(args.current))
    with claimed(args.work):
        upgrade = _judged(suite, name, changes, args)
    answer = summary(upgrade)
    if args.json:
        print(json.dumps(answer, indent=2))
    else:
        _print(answer)
    return int(exit_code(upgrade.judgement.verdict))


def _judged(suite: Suite, name: str, changes: Sequence[PackageChange], args: argparse.Namespace) -> Upgrade:
    """Build what is trained on, train, and bisect, all of it in the work folder."""
    from plumbline.prepare import prepare
    from plumbline.upgrade.gate import Gate
    from plumbline.upgrade.overlay import Overlays
    from plumbline.upgrade.trainings import Trainings

    alone = _alone(suite, name, args.work)
    spec = prepare(alone, args.work / "built", _say)[name]
    overlays = Overlays(args.work / "overlays", pip_arguments=args.pip)
    trainings = Trainings(spec, alone.platforms["upgrade"].data, args.work, overlays)
    return Gate(trainings.train, _say).judge(changes, suite.gates)


def _alone(suite: Suite, name: str, work: Path) -> Suite:
    """The suite with one workload on this machine: its probe, and its speed where the suite measures that."""
    store = f"file://{(work / 'data').resolve()}"
    here = {"work_pool": "upgrade", "data": store, "outbox": store}
    workload = suite.workloads[name].replace(learn=None)
    return suite.replace(workloads={name: workload}, platforms={"upgrade": here}, reference="upgrade", local={})


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _print(answer: Any) -> None:
    print(answer["verdict"])
    for finding in answer["findings"]:
        if finding["check"] == "speed.throughput" or finding["outcome"] != "pass":
            print(f"  {finding['check']}: {finding['outcome']}: {finding['detail']}")
    for cause in answer["causes"]:
        print(f"  cause: {cause['code']} ({cause['sure']}): {cause['why']}")
    if answer["bisection"]:
        _print_bisection(answer["bisection"])


def _print_bisection(found: Any) -> None:
    print(f"  made by: {', '.join(found['culprits'])}")
    print(f"  all other changes together: {_OTHERS[found['others']]}")
    broken = sum(one["outcome"] == "broken" for one in found["trials"])
    if broken and len(found["culprits"]) > 1:
        # The set is only as small as the trials that told something could make it.
        print(f"  trials that could not be judged: {broken}; fewer of these packages may make it")
