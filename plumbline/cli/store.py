"""`plumbline store import/export/site/cost/prune`: contents of a suite's central store."""

from __future__ import annotations

from typing import Any

from plumbline.cli import cost, export, import_, prune, site


def register(subparsers: Any) -> None:
    """Add the command `store` and its subcommands."""
    parser = subparsers.add_parser("store", help="import, export, show and remove stored rounds", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (import_, export, site, cost, prune):
        command.add(commands)
