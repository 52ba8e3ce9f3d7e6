"""`plumbline store cost SUITE`: cost of a night, by platform."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plumbline.cli.options import at_least
from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.rounds.night_cost import PlatformCost, night_costs, total
from plumbline.night.rounds.reporting import PRICED_NIGHTS, last_rounds
from plumbline.schema.errors import ExitCode
from plumbline.schema.suite import read_suite

_NOTE = """Prices: plumbline/schema/machines.toml, or a platform's price_per_hour. Hours: the median of the measured
nights, from a training's start to its record; a machine's start and idle time, and trainings that left no record, are
not in it."""


def add(commands: Any) -> None:
    """Add the command `store cost`."""
    parser = commands.add_parser("cost", help="show what a night costs, by platform", description=__doc__)
    parser.add_argument("suite", type=Path, help="the suite file")
    parser.add_argument(
        "--last", type=int, default=PRICED_NIGHTS, metavar="N", help="number of nights to measure by (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the cost of a night, from the last nights' records."""
    last, suite = at_least("--last", args.last, 1), read_suite(args.suite)
    costs = night_costs(suite, last_rounds(CentralStore(open_store(suite.store)), suite.name, last))
    if args.json:
        rows = {cost.platform: {**asdict(cost), "machines": cost.machines, "night": cost.night} for cost in costs}
        print(json.dumps({"suite": suite.name, "currency": "USD", "night": total(costs), "platforms": rows}))
    else:
        print("\n".join(_lines(costs)))
    return int(ExitCode.PASS)


def _lines(costs: Sequence[PlatformCost]) -> list[str]:
    head = ["platform", "machine", "USD/h", "GPU h", "GiB", "machines", "storage", "egress", "night", "measured"]
    rows = [head, *(_row(cost) for cost in costs)]
    night = total(costs)
    rows.append(["total", *[""] * 7, _usd(night), ""])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if night is None:
        names = ", ".join(cost.platform for cost in costs if cost.night is None)
        text.append(f"no price is known for {names}: set price_per_hour, or an accelerator of the machine table")
    return [*text, *_NOTE.splitlines()]


def _row(cost: PlatformCost) -> list[str]:
    price = "?" if cost.price_per_hour is None else f"{cost.price_per_hour:g}"
    measured = f"{cost.num_nights} nights" if cost.num_nights else "no night: at most, by run_seconds"
    return [
        cost.platform, cost.machine or "-", price, f"{cost.gpu_hours:.2f}", f"{cost.gib:.3f}", _usd(cost.machines),
        _usd(cost.storage), _usd(cost.egress), _usd(cost.night), measured,
    ]  # fmt: skip


def _usd(amount: float | None) -> str:
    return "?" if amount is None else f"{amount:.2f}"
