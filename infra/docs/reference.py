"""Pages of the documentation that are made from the code: commands, suite, documents and codes.

`python infra/docs/reference.py` prints them as JSON by their path below docs/.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from plumbline.baseline.schema import Baseline
from plumbline.history.series import SeriesFile
from plumbline.schema.json_schema import described_schema, suite_schema
from plumbline.schema.manifest import Manifest
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import SpecFile
from plumbline.schema.verdict import Judgement, RoundVerdict
from plumbline.upgrade.answer import UpgradeAnswer

DOCUMENTS: tuple[tuple[type[BaseModel], str], ...] = (
    (RoundVerdict, "`plumbline run --json`; `rounds/SUITE/ROUND/round.json` in the central store"),
    (Judgement, "`plumbline compare --json`, which adds what it read; each platform of a round"),
    (UpgradeAnswer, "`plumbline upgrade --json`; `upgrade.json`"),
    (RunRecord, "`record.json` of a training"),
    (SpecFile, "`spec.json`, as `plumbline spec` writes it"),
    (Manifest, "`DATASET/manifest.json` in a data store"),
    (Baseline, "`baselines/SPEC/PLATFORM.json` in the central store"),
    (SeriesFile, "`series/SUITE/PLATFORM.json` in the central store"),
)


def pages() -> dict[str, str]:
    """Return the generated pages by path."""
    return {"reference/commands.md": commands_page(), **static_pages()}


def static_pages() -> dict[str, str]:
    """Return those that need no command's packages."""
    return {
        "reference/documents.md": documents_page(),
        "reference/suite.schema.json": json.dumps(suite_schema(), indent=1) + "\n",
    }


def commands_page() -> str:
    """Return the help of every command."""
    from plumbline.cli import main as cli

    os.environ["COLUMNS"] = "100"
    parser = cli.build_parser(cli._load(cli._loaders().values()))  # noqa: SLF001 - as the command line does
    parts = ["# Commands", "Made from the command line's own help.", f"```text\n{_help(parser, [])}```"]
    for name in sorted(cli._loaders()):  # noqa: SLF001
        text = _help(parser, [name])
        parts += [f"## plumbline {name}", f"```text\n{text}```"] if text else []
        for nested in _nested(text):
            parts += [f"### plumbline {name} {nested}", f"```text\n{_help(parser, [name, nested])}```"]
    return "\n\n".join(parts) + "\n"


def _help(parser: Any, words: list[str]) -> str:
    """Return what `plumbline WORDS --help` prints; "" for a module that is no command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        parser.parse_args([*words, "--help"])
    return out.getvalue()


def _nested(text: str) -> list[str]:
    """Return the names below a command."""
    return re.findall(r"^    (\w+)", text.partition("  COMMAND\n")[2], re.MULTILINE)


def documents_page() -> str:
    """Return the fields of every JSON document, each model once."""
    parts = ["# JSON documents", "Made from the models. A field without a default is required."]
    known: dict[str, Any] = {}
    for kind, where in DOCUMENTS:
        schema = described_schema(kind)
        known |= schema.get("$defs", {})
        known.pop(kind.__name__, None)
        parts += [f"## {kind.__name__}", f"{schema['description']} {_sentence(where)}", _fields(schema)]
    for name in sorted(known.keys() - {kind.__name__ for kind, _ in DOCUMENTS}):
        if "properties" in known[name]:
            parts += [f"### {name}", known[name].get("description", ""), _fields(known[name])]
    text = "\n\n".join(part for part in parts if part) + "\n"
    for name in (name for name, definition in known.items() if "properties" not in definition):
        text = text.replace(f"[{name}](#{name.lower()})", name)
    return text


def _sentence(text: str) -> str:
    return f"Where: {text}."


def _fields(schema: dict[str, Any]) -> str:
    rows = "\n".join(_rows(schema))
    return f"| field | type | default | meaning |\n|---|---|---|---|\n{rows}"


def _rows(schema: dict[str, Any]) -> Iterator[str]:
    for name, field in schema["properties"].items():
        default = f"`{json.dumps(field['default'])}`" if "default" in field else ""
        if name in schema.get("required", ()):
            default = "required"
        cells = (f"`{name}`", type_of(field), default, " ".join(field.get("description", "").split()))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def type_of(field: dict[str, Any]) -> str:
    """Return the type of a property in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(type_of(choice) for choice in field["anyOf"] if choice != {"type": "null"})
    if "enum" in field or "const" in field:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in field.get("enum", [field.get("const")]))
    kind = field.get("type", "any JSON")
    if kind == "array":
        items = field.get("items") or {"anyOf": field.get("prefixItems", [])}
        return f"list of {type_of(items)}".removesuffix(" of ")
    if kind == "object":
        values = field.get("additionalProperties")
        return f"table of {type_of(values)}" if isinstance(values, dict) and values else "table"
    named = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    return f"{named.get(kind, kind)}{_bounds(field)}"


def _bounds(field: dict[str, Any]) -> str:
    signs = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    bounds = [f"{sign} {field[key]:g}" for key, sign in signs if key in field and abs(field[key]) < 2**53]
    return f" {', '.join(bounds)}" if bounds else ""


if __name__ == "__main__":
    print(json.dumps(pages()))
