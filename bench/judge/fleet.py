"""CPU time and memory of a controller after the trainings of a fleet: gather, judge, report, alerts.

    python -m bench.judge.fleet --platforms 50 --workloads 4 [--out FILE] [--profile FILE]

Each platform delivers a copy of one kept record to its outbox; no server is needed, and nothing trains. The copies are
equal, as on a fleet of one kind of machine: the judge compares all of them, and tries its canary on each.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from plumbline.alerts import AlertBook, update
from plumbline.central import CentralStore, publish_record
from plumbline.dispatch import Result
from plumbline.records import load_record
from plumbline.rounds import Round
from plumbline.rounds.baselines import read_baselines
from plumbline.rounds.gathered import harvest
from plumbline.rounds.judging import apply_canary, judge_harvest, prove_round
from plumbline.rounds.night_findings import apply_nights
from plumbline.rounds.nights import decide_nights
from plumbline.rounds.outcome import join, sum_up
from plumbline.rounds.reporting import draw_plots, write_report
from plumbline.rounds.series import read_history, write_nights
from plumbline.rounds.site import connect_reports, write_site
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.suite import Suite
from plumbline.stores import open_store

_RECORD = Path(__file__).resolve().parents[1] / "results/gpu/records/cpu"
_ROUND = "20261126-020000-fleet"


class Clock:
    """CPU seconds and wall seconds by phase."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time a phase."""
        cpu, wall = time.process_time(), time.monotonic()
        yield
        self.phases[name] = {
            "cpu_seconds": round(time.process_time() - cpu, 2), "seconds": round(time.monotonic() - wall, 2),
        }  # fmt: skip


def make_round(folder: Path, num_platforms: int, num_workloads: int) -> Round:
    """Return a round of the fleet; its records are in the outboxes."""
    spec = load_record(_RECORD).record.spec
    workloads = {f"w{number:02}": spec.replace(workload=f"w{number:02}") for number in range(num_workloads)}
    recipe = {"model": "tiny", "data": "reviews", "seed": 7, "batch_size": 8, "probe": {}}
    place = {"work_pool": "gpu", "data": f"file://{folder}/data", "outbox": f"file://{folder}/outbox"}
    names = [f"p{number:03}" for number in range(num_platforms)]
    suite = Suite.model_validate({
        "name": "fleet", "store": f"file://{folder}/central", "reference": names[0],
        "workloads": dict.fromkeys(workloads, recipe), "platforms": dict.fromkeys(names, place),
        "alerts": [{"on": ["drift", "invalid", "unavailable", "recovered"], "block": "apprise-url/team"}],
    })  # fmt: skip
    round_ = Round(_ROUND, suite, workloads, "secret")
    _deliver(round_, folder)
    return round_


def _deliver(round_: Round, folder: Path) -> None:
    content = json.loads((_RECORD / RECORD_NAME).read_bytes())
    # The kept training was ordered by no round.
    content["evidence"]["selfcheck"] = {"verdict": "pass"}
    made, outbox = folder / "made", open_store(f"file://{folder}/outbox")
    made.mkdir(parents=True)
    for path in _RECORD.iterdir():
        (made / path.name).write_bytes(path.read_bytes())
    for assignment in round_.assignments():
        order = round_.order(assignment, 0)
        own: dict[str, Any] = {
            "record_id": order.record_id, "round_id": order.round_id, "platform": order.platform, "nonce": order.nonce,
            "attempt": 0, "spec": order.spec.to_json(), "spec_sha256": order.spec.digest,
        }  # fmt: skip
        (made / RECORD_NAME).write_text(json.dumps({**content, **own}), encoding="utf-8")
        publish_record(outbox, made)


def play(round_: Round, folder: Path, clock: Clock) -> str:
    """Gather, judge, report and alert, as a controller does; return the verdict."""
    central, outbox = CentralStore(open_store(round_.suite.store)), open_store(f"file://{folder}/outbox")
    results = {assignment: Result(0, attempts=1) for assignment in round_.assignments()}
    with clock("gathering"):
        gathered = harvest(round_, results, dict.fromkeys(round_.suite.platforms, outbox), central, folder / "into")
    with clock("judging"):
        baselines, unreadable = read_baselines(round_, central, folder)
        history = read_history(round_, central)
        nights = decide_nights(round_, gathered, history, baselines, datetime.now(UTC))
        judged = apply_nights(judge_harvest(round_, gathered, baselines, unreadable), nights, 0.02)
    with clock("canary"):
        judged = apply_canary(judged, prove_round(round_, gathered))
    platforms = {name: join({work: of[name] for work, of in judged.items()}) for name in round_.suite.platforms}
    verdict = sum_up(round_, platforms)
    with clock("reporting"):
        verdict = write_report(round_, verdict, gathered, baselines, central)
        write_nights(round_, verdict, nights, baselines, central=central, now=datetime.now(UTC))
        central.put_round(verdict)
    with clock("pages"):
        write_site(central, round_.suite)
        connect_reports(central, round_.suite.name, [round_.id], "")
        draw_plots(round_, verdict, gathered, baselines, central)
    with clock("alerting"):
        AlertBook(central, round_.suite.name).change(
            lambda state: update(state, verdict, round_.suite.alerts, datetime.now(UTC))
        )
    return verdict.verdict


def main() -> None:
    """Play one round, and print or keep its times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--platforms", type=int, default=20)
    parser.add_argument("--workloads", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", type=Path, help="write cProfile's statistics")
    args = parser.parse_args()
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="plumbline-fleet-") as name:
        round_ = make_round(Path(name), args.platforms, args.workloads)
        profile = cProfile.Profile()
        if args.profile:
            profile.enable()
        verdict = play(round_, Path(name), clock)
        profile.disable()
    if args.profile:
        profile.dump_stats(args.profile)
    total = {key: round(sum(phase[key] for phase in clock.phases.values()), 2) for key in ("cpu_seconds", "seconds")}
    found = {
        "platforms": args.platforms, "workloads": args.workloads, "verdict": verdict, "phases": clock.phases,
        "total": total, "mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "place": {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
    }  # fmt: skip
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
