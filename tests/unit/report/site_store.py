"""Stores with many nights of a suite, without a training."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from plumbline.data.stores import open_store
from plumbline.judge.history.metrics import extended
from plumbline.night.central import CentralStore
from plumbline.night.central.series import write_series
from plumbline.night.rounds.reporting import keep_report
from plumbline.schema.series import CallEntry, JudgedRound, NightRow, SeriesFile
from plumbline.schema.suite import Suite, read_suite
from tests.unit.report.samples import drifted, passing, record, report_page, verdict_of

BEGIN = datetime(2025, 10, 20, 2, 40, tzinfo=UTC)
LOSS = 12
"""Number of last nights on which azure is slower."""
_SUITE = """name = "nightly"
store = "{url}"
reference = "aws"
[workloads.bert-tiny-reviews]
model = "tiny"
data = "reviews"
seed = 7
batch_size = 32
probe = {{}}
speed = {{}}
learn = {{}}
"""
_PLATFORM = '[platforms.{name}]\nwork_pool = "{name}"\ndata = "{url}/data"\noutbox = "{url}-outbox/{name}"\n'


def suite_file(root: Path, platforms: int = 2) -> Path:
    """Write a suite of this many platforms, whose store is `root`."""
    url = f"file://{root}"
    names = ["aws", "azure", *(f"region-{index:02}-pool" for index in range(platforms - 2))]
    text = _SUITE.format(url=url) + "".join(_PLATFORM.format(name=name, url=url) for name in names)
    path = root / "suite.toml"
    path.write_text(text, encoding="utf-8")
    return path


def night(index: int) -> str:
    return f"{BEGIN + timedelta(days=index):%Y%m%d}-024000-{index:04x}"


def series_of(platform: str, nights: int) -> SeriesFile:
    """Return a platform's nights: azure is 9% slower in the last ones, which a round has confirmed as software."""
    dice = random.Random(platform)
    rows, judged = [], {}
    for index in range(nights):
        is_slow = platform == "azure" and index >= nights - LOSS
        rate = 612 * math.exp(dice.gauss(0, 0.006)) * (0.91 if is_slow else 1.0)
        time = BEGIN + timedelta(days=index)
        metrics = {
            "throughput": rate,
            "peak_memory": 1.25e9,
            "accuracy": 0.8047,
            "first_step": 8.0 + dice.gauss(0, 0.1),
        }
        metrics["evaluation_loss"] = 0.4381 + index / 1e4 if index >= nights - 4 else None
        rows.append(NightRow(
            record=f"{night(index)}-{platform}", round=night(index), time=time, workload="bert-tiny-reviews",
            spec="a" * 16, lock="b" * 16, hardware="1 x NVIDIA A10G", software=("e" if is_slow else "d") * 16,
            metrics=metrics,
        ))  # fmt: skip
        drifts = platform == "azure" and index > nights - LOSS
        judged[night(index)] = JudgedRound(
            time=time.timestamp() + 600, verdict="drift" if drifts else "pass", causes=("software",) if drifts else ()
        )
    call = CallEntry(
        record=f"{night(nights - LOSS + 1)}-azure", metric="throughput", verdict="drift", reason="software", new=True,
        since=(BEGIN + timedelta(days=nights - LOSS)).timestamp(), shape="step", centre=-math.log(612), size=0.094,
        low=0.081, high=0.107, cause="software",
    )  # fmt: skip
    return extended(SeriesFile(suite="nightly", platform=platform), rows, [call] if platform == "azure" else [], judged)


def filled_store(root: Path, *, platforms: int = 2, nights: int = 60, reports: int = 3) -> tuple[CentralStore, Suite]:
    """Return a store with every platform's nights, and the reports of the last ones."""
    suite = read_suite(suite_file(root, platforms))
    central = CentralStore(open_store(suite.store))
    for name in suite.platforms:
        write_series(central, series_of(name, nights))
    records = {name: record(name) for name in ("aws", "azure")}
    for index in range(nights - reports, nights):
        results = {name: drifted() if name == "azure" else passing() for name in suite.platforms}
        verdict = verdict_of("drift", results, round=night(index))
        central.put_round(verdict)
        keep_report(central, verdict, report_page(verdict, records, reference="aws"))
    return central, suite
