"""`plumbline explain CODE`: print the meaning of a cause or a verdict, its evidence and the next action."""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from plumbline.errors import ConfigurationError, ExitCode
from plumbline.localstack.resources import resource
from plumbline.schema.suite_file import did_you_mean

__all__ = ["explanations", "register", "run"]

_PAGE = "docs/CAUSES.md"
_HEADING = re.compile(r"^### `(?P<code>[a-z.-]+)`$", re.MULTILINE)
_ROW = re.compile(r"^\| `(?P<code>[a-z.-]+)` \| (?P<cells>.+) \|$", re.MULTILINE)
_CELLS = ("", "**Evidence:** ", "**Do:** check ")


def register(subparsers: Any) -> None:
    """Add `explain`."""
    parser = subparsers.add_parser("explain", help="explain the code of a cause or a verdict", description=__doc__)
    parser.add_argument("code", nargs="?", default="", help="a code, such as data.labels; without it, list the codes")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or the list of codes."""
    known = explanations(resource(_PAGE).read_text(encoding="utf-8"))
    if args.code and args.code not in known:
        hint = did_you_mean(args.code, known) or "`plumbline explain` lists all codes"
        raise ConfigurationError("unknown code", where=args.code, hint=hint)
    if args.json:
        print(json.dumps({args.code: known[args.code]} if args.code else known, indent=2))
    elif args.code:
        print(f"{args.code}\n\n{_plain(known[args.code])}")
    else:
        print("\n".join(f"{code:20} {re.split(r'[.:](?= |$)', text)[0]}" for code, text in known.items()))
    return int(ExitCode.PASS)


def explanations(page: str) -> dict[str, str]:
    """Return the page's text of each code, from its sections and its tables."""
    found: dict[str, tuple[int, str]] = {}
    for heading in _HEADING.finditer(page):
        end = re.compile(r"^(#|\[)", re.MULTILINE).search(page, heading.end())
        text = page[heading.end() : end.start() if end else len(page)]
        found[heading["code"]] = heading.start(), " ".join(text.split())
    for row in _ROW.finditer(page):
        cells = zip(_CELLS, row["cells"].split(" | "), strict=True)
        text = " ".join(f"{label}{cell[:1].upper() * (not label) or cell[:1]}{cell[1:]}." for label, cell in cells)
        found[row["code"]] = row.start(), text
    return {code: text for code, (_, text) in sorted(found.items(), key=lambda item: item[1][0])}


def _plain(text: str) -> str:
    """Return Markdown as text, each labelled part on a line of its own."""
    without_links = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)
    return re.sub(r" ?\*\*([^*]+):\*\* ", r"\n\1: ", without_links)
