"""`plumbline store import/export/site/cost/prune`: import, export, show and remove stored rounds."""

from __future__ import annotations

from typing import Any

from plumbline.cli import cost, export, import_, prune, site
from plumbline.cli.options import summary


def register(subparsers: Any) -> None:
    """Add the command `store` and its subcommands."""
    parser = subparsers.add_parser("store", help=summary(__doc__), description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (import_, export, site, cost, prune):
        command.add(commands)
