"""`python -m tests.flows.drill [NAME ...]`: what goes wrong at night, done on purpose, on real servers and workers.

Each drill starts a real round, breaks something, and checks that the round ends by its deadline with the right verdict,
that no training runs on, and that no record is lost or counted twice. `--fleet` does five of them at random to a round
over twenty platforms, seed by seed. `--as-deployed` has the workers start trainings as they do on clouds, where no work
pool names an interpreter. With `--out FILE` the outcome of each is kept there, in place of an earlier one.
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

from prefect import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.workers.process import ProcessWorker

from tests.flows.drill import fleet, rounds, servers, speed, workers
from tests.flows.drill.telling import SAID, say
from tests.flows.ground import Ground, ground, small_suite

Drill = Callable[[Ground], None]
DRILLS: tuple[Drill, ...] = (*workers.DRILLS, *servers.DRILLS, *rounds.DRILLS, *speed.DRILLS)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)


class Outcomes:
    """How each case went, on the screen and in a file."""

    def __init__(self, state: Path, out: Path | None) -> None:
        self._state = str(state)
        self._out = out
        self.failed: list[str] = []

    def run(self, name: str, drill: Callable[[], None]) -> bool:
        """Run one case; whether it went as it should."""
        print(name, flush=True)
        SAID.clear()
        began, why = time.monotonic(), ""
        try:
            drill()
        except Exception as error:  # noqa: BLE001 - a drill that breaks has failed, and the next one has its turn
            why = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            self.failed.append(name)
            say(f"FAILED: {why}")
        seconds = round(time.monotonic() - began, 1)
        print(f"    {seconds} s", flush=True)
        said = [line.replace(self._state, "STATE") for line in SAID]
        self._keep({"name": name, "passed": not why, "seconds": seconds, "said": said})
        return not why

    def _keep(self, case: dict[str, Any]) -> None:
        if self._out is None:
            return
        cases = json.loads(self._out.read_text(encoding="utf-8"))["cases"] if self._out.exists() else []
        cases = [one for one in cases if one["name"] != case["name"]] + [case]
        place = {"machine": machine.machine(), "cores": os.cpu_count(), "python": machine.python_version()}
        self._out.write_text(json.dumps({"place": place, "cases": cases}, indent=1) + "\n", encoding="utf-8")


def _as_deployed(this: Ground) -> None:
    """Give the platforms' pools Prefect's own template, as `plumbline deploy` does."""
    template = ProcessWorker.get_default_base_job_template()
    with temporary_settings({PREFECT_API_URL: this.stack.api_url}), get_client(sync_client=True) as client:
        for platform in this.suite.platforms.values():
            client.update_work_pool(platform.work_pool, WorkPoolUpdate(base_job_template=template))


def _drill(names: list[str], state: Path, outcomes: Outcomes, *, as_deployed: bool) -> None:
    chosen = [drill for drill in DRILLS if not names or drill.__name__ in names]
    if chosen:
        with ground(state, ("aws", "azure", "onprem"), without=("onprem",)) as this:
            if as_deployed:
                _as_deployed(this)
            this.suite = small_suite(state)
            for drill in chosen:
                this.forgive()
                if not outcomes.run(drill.__name__, partial(drill, this)):
                    this.clear()
    if not names or "command_ended" in names:
        for number in _SIGNALS:
            outcomes.run(f"command_ended {number.name}", partial(rounds.command_ended, state, number))


def _fleet(seeds: range, state: Path, outcomes: Outcomes) -> None:
    with fleet.fleet(state) as this:
        for seed in seeds:
            this.forgive()
            if not outcomes.run(f"fleet, seed {seed}", partial(fleet.one_night, this, seed)):
                this.clear()


def _seeds(given: str) -> range:
    first, _, last = given.partition("-")
    return range(int(first), int(last or first) + 1)


def main() -> int:
    """Run the drills, all or those named; the number that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the drills to run (default: all)")
    parser.add_argument("--fleet", action="store_true", help="twenty platforms, five random failures")
    parser.add_argument("--as-deployed", action="store_true", help="work pools as `plumbline deploy` makes them")
    parser.add_argument("--seeds", type=_seeds, default=range(1, 21), metavar="FIRST-LAST", help="default: 1-20")
    parser.add_argument("--state", type=Path, help="keep all state and logs in this folder")
    parser.add_argument("--out", type=Path, help="keep the outcomes in this file")
    args = parser.parse_args()
    known = {drill.__name__ for drill in DRILLS} | {"command_ended"}
    if unknown := set(args.names) - known:
        parser.error(f"no drill of this name: {', '.join(sorted(unknown))}")
    # A shell's background command ignores Ctrl-C, and so would the commands that are to be ended by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    state = (args.state or Path(tempfile.mkdtemp(prefix="plumbline-drill-"))).resolve()
    outcomes = Outcomes(state, args.out)
    try:
        if args.fleet:
            _fleet(args.seeds, state, outcomes)
        else:
            _drill(args.names, state, outcomes, as_deployed=args.as_deployed)
    finally:
        if args.state is None:
            shutil.rmtree(state, ignore_errors=True)
    failed = outcomes.failed
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "every drill went as it should", flush=True)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
