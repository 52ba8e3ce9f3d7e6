"""`python -m drills [NAME ...]`: cause failures of a round on stock servers and workers.

Each drill deploys a suite, starts a real round, breaks something, and checks that the round ends by its deadline with
the right verdict, that no training is left running, and that no record is lost or counted twice. `--fleet` runs one
round over twenty platforms per seed, with five random failures in each. `--out FILE` keeps the outcome of each drill,
and replaces an earlier one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform as machine
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from drills import (
    controller_failures,
    disk_failures,
    fleet,
    kubernetes,
    recovery,
    round_starts,
    server_failures,
    slow_platforms,
    store_failures,
    token_failures,
    worker_failures,
)
from drills.transcript import LINES, say
from tests.flows.local_stack import RunningStack, running_stack
from tests.flows.small_suite import small_suite

Drill = Callable[[RunningStack], None]
DRILLS: tuple[Drill, ...] = (
    *worker_failures.DRILLS,
    *controller_failures.DRILLS,
    *server_failures.DRILLS,
    *recovery.DRILLS,
    *round_starts.DRILLS,
    *slow_platforms.DRILLS,
    *store_failures.DRILLS,
    *token_failures.DRILLS,
    *disk_failures.DRILLS,
    *kubernetes.DRILLS,
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Outcomes:
    """The outcome of each drill, on the screen and in a file."""

    def __init__(self, state: Path, out: Path | None) -> None:
        self._state = str(state)
        self._out = out
        self.failed: list[str] = []

    def run(self, name: str, drill: Callable[[], None]) -> bool:
        """Run one drill, and return whether it passed."""
        print(name, flush=True)
        LINES.clear()
        began, reason = time.monotonic(), ""
        try:
            drill()
        except Exception as error:  # noqa: BLE001 - the drill has failed, and the next one starts
            reason = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.failed.append(name)
            say(f"FAILED: {reason}")
        seconds = round(time.monotonic() - began, 1)
        print(f"    {seconds} s", flush=True)
        lines = [line.replace(self._state, "STATE") for line in LINES]
        self._store({"name": name, "passed": not reason, "seconds": seconds, "said": lines})
        return not reason

    def _store(self, case: dict[str, Any]) -> None:
        if self._out is None:
            return
        cases = json.loads(self._out.read_text(encoding="utf-8"))["cases"] if self._out.exists() else []
        cases = [item for item in cases if item["name"] != case["name"]] + [case]
        place = {"machine": machine.machine(), "cores": os.cpu_count(), "python": machine.python_version()}
        self._out.write_text(json.dumps({"place": place, "cases": cases}, indent=1) + "\n", encoding="utf-8")


def _run_drills(names: list[str], state: Path, outcomes: Outcomes) -> None:
    chosen = [drill for drill in DRILLS if not names or drill.__name__ in names]
    if chosen:
        with running_stack(state, ("aws", "azure", "onprem"), without=("onprem",)) as stack:
            for drill in chosen:
                # A new name: the previous drill may have left queued runs.
                stack.suite = small_suite(state, f"drill-{drill.__name__.replace('_', '-')}")
                stack.forgive()
                if not outcomes.run(drill.__name__, partial(drill, stack)):
                    stack.clear()
    if not names or "command_ended" in names:
        for number in _SIGNALS:
            outcomes.run(f"command_ended {number.name}", partial(round_starts.command_ended, state, number))


def _run_fleet(seeds: range, state: Path, outcomes: Outcomes) -> None:
    with fleet.fleet(state) as stack:
        for seed in seeds:
            stack.forgive()
            if not outcomes.run(f"fleet, seed {seed}", partial(fleet.run_night, stack, seed)):
                stack.clear()


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run all drills, or those named, and return the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the drills to run (default: all)")
    parser.add_argument("--fleet", action="store_true", help="twenty platforms, five random failures")
    parser.add_argument("--seeds", type=_seeds, default=range(1, 21), metavar="FIRST-LAST", help="default: 1-20")
    parser.add_argument("--state", type=Path, help="keep all state and logs in this folder")
    parser.add_argument("--out", type=Path, help="keep the outcomes in this file")
    args = parser.parse_args()
    known = {drill.__name__ for drill in DRILLS} | {"command_ended"}
    if unknown := set(args.names) - known:
        parser.error(f"no drill of this name: {', '.join(sorted(unknown))}")
    # A shell's background command ignores Ctrl-C, and its children would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    state = (args.state or Path(tempfile.mkdtemp(prefix="plumbline-drill-"))).resolve()
    state.mkdir(parents=True, exist_ok=True)
    outcomes = Outcomes(state, args.out)
    try:
        if args.fleet:
            _run_fleet(args.seeds, state, outcomes)
        else:
            _run_drills(args.names, state, outcomes)
    finally:
        if args.state is None:
            shutil.rmtree(state, ignore_errors=True)
    failed = outcomes.failed
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "all drills passed", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
