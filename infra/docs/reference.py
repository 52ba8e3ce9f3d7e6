"""Pages of the documentation that are made from the code: commands, suite, documents, limits and codes.

`python infra/docs/reference.py` prints those of the site alone as JSON by their path below docs/, and `--write` writes
those that the repository keeps, because messages and people name them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from plumbline.cli.main import all_commands, build_parser
from plumbline.night.baseline import Baseline
from plumbline.report.sentences import explanations
from plumbline.schema import limits
from plumbline.schema.json_schema import described_schema, suite_schema
from plumbline.schema.manifest import Manifest
from plumbline.schema.record import RunRecord
from plumbline.schema.series import SeriesFile
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

_MANY = 10**6
"""A bound from here on only keeps a file small."""
_SUITE = """# Every key of a suite

Made from the models by `make docs`; `plumbline init` writes the same as a JSON Schema for editors, and a commented suite (`--from-outputs`: with the platforms that [the modules of infra/](tutorials/clouds.md) made). A suite is one TOML file, written by a person. It holds no credentials.

An unknown key, a wrong type, a number out of range, or values that contradict each other end with exit code 2 and one line that names the file and the key. Types are TOML's: `true` is not a number, `"4"` and `16.0` are not integers. A *name* has 1 to 63 lower-case letters, digits, dots, dashes and underscores, and starts with a letter or digit. A *store URL* is `file:///folder`, `s3://bucket/prefix`, `az://account/container/prefix` or `gs://bucket/prefix`; a relative `file://` URL is resolved against the working folder. Trainings are named `PLATFORM-WORKLOAD` (a rerun of the speed part adds `-rerun`); no two names may be equal. `plumbline spec` needs `[workloads]` and `[datasets]` alone. Examples: [examples/](../examples/README.md)."""  # noqa: E501
_COMMANDS = """# Commands

Made from the command line by `make docs`. A command's `--help` lists its options; the site has [all of them](reference/commands.md). Every command that reports takes `--json`, and every command `--quiet`, `--verbose` and `--debug`. The option `--print-completion` prints the completions of bash, zsh or tcsh."""  # noqa: E501
_CODES = """# What each code means

Made from `plumbline/report/causes.toml` by `make docs`; `plumbline explain CODE` prints one entry. A cause has a code, a reason, numbers as evidence, fingerprint differences that could explain it (`suspects`, never a verdict), the experiments that were run (`tried`), and a certainty:

- `confirmed`: an experiment restored the reference's value of the suspect alone, and the difference disappeared; or an unchanged rerun repeated a difference that the record shows directly (a different model or number format).
- `likely`: the evidence points there; no experiment was run, or none was possible. `plumbline compare` runs none.
- `unattributed`: no restored value removed the difference.

*First divergence* is the first place where two runs differ (stage, step, module or row). [The ladder](ladder.md) explains the order, [FAULTS.md](FAULTS.md) how often the named cause is right."""  # noqa: E501


def pages() -> dict[str, str]:
    """Return the generated pages by path."""
    made = {"reference/commands.md": commands_page()}
    return {**made, **static_pages()}


def static_pages() -> dict[str, str]:
    """Return those that need no command's packages."""
    return {
        "reference/documents.md": documents_page(),
        "reference/limits.md": limits_page(),
        "reference/suite.schema.json": json.dumps(suite_schema(), indent=1) + "\n",
    }


def kept_pages() -> dict[str, str]:
    """Return the generated pages that the repository keeps."""
    return {"COMMANDS.md": command_table(), "SUITE.md": suite_page(), "CAUSES.md": codes_page()}


def codes_page() -> str:
    """Return the page of every verdict and cause."""
    parts, group = [_CODES], ""
    for code, entry in explanations().items():
        parts += [f"## {entry['group']}"] if entry["group"] != group else []
        group = entry["group"]
        parts.append(f"### `{code}`\n{entry['meaning']} **Evidence:** {entry['evidence']} **Do:** {entry['do']}")
    return "\n\n".join(parts) + "\n"


def limits_page() -> str:
    """Return the table of limits, section by section."""
    source = Path(limits.__file__).read_text(encoding="utf-8")
    parts = [
        f"# Limits\n\nMade from `plumbline/schema/limits.py` by `make docs`. {' '.join((limits.__doc__ or '').split())}"
    ]
    for section in re.split(r"^# ", source, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition(".\n")
        found = re.findall(r'^(\w+)[^=\n]* = ([^\n]+)\n"""(.+?)"""', body, re.MULTILINE | re.DOTALL)
        rows = [f"| `{name}` | `{value}` | {' '.join(reason.split())} |" for name, value, reason in found]
        parts.append("\n".join([f"## {title}\n", "| limit | value | why |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def suite_page() -> str:
    """Return every key of a suite, table by table."""
    schema = suite_schema()
    parts = [_SUITE, "## The suite itself", _fields(schema, "key")]
    pending = list(_tables(schema, ""))
    while pending:
        heading, name, path = pending.pop(0)
        definition = schema["$defs"][name]
        parts += [f"## `{heading}`", definition["description"], _fields(definition, "key")]
        pending = [*_tables(definition, f"{path}."), *pending]
    return "\n\n".join(parts) + "\n"


def _tables(definition: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    """Yield heading, model and path of the tables below one."""
    for key, field in definition["properties"].items():
        found = list(dict.fromkeys(re.findall(r'"#/\$defs/(\w+)"', json.dumps(field))))
        path = f"{prefix}{key}" + (".NAME" if field.get("type") == "object" else "")
        for place, name in enumerate(found):  # a second kind of table has a key that tells it
            heading = f"[[{path}]]" if field.get("type") == "array" else f"[{path}]"
            yield heading if not place else f"{heading} of a command", name, path


def commands_page() -> str:
    """Return the help of every command."""
    parser = _parser()
    parts = ["# Every option", "Made from the command line's own help.", f"```text\n{_help(parser, [])}```"]
    for words, _ in _commands(parser):
        parts += [f"{'#' * len(words)}# plumbline {' '.join(words)}", f"```text\n{_help(parser, words)}```"]
    return "\n\n".join(parts) + "\n"


def command_table() -> str:
    """Return the table of commands, those of a group below it."""
    parser = _parser()
    groups = {words[0] for words, _ in _commands(parser) if len(words) > 1}
    rows = [
        f"| `{_usage(parser, words)}` | {text} |"
        for words, text in _commands(parser)
        if len(words) > 1 or words[0] not in groups
    ]
    return "\n".join([_COMMANDS, "", "| command | does |", "|---|---|", *rows, ""])


def _parser() -> ArgumentParser:
    os.environ["COLUMNS"] = "86"
    return build_parser(all_commands())


def _commands(parser: ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words and the help of each command, in order of name."""
    named = re.findall(
        r"^    (\w+)\s+((?:.+\n?)(?:^ {5,}.+\n?)*)", _help(parser, words).partition("  COMMAND\n")[2], re.MULTILINE
    )
    for name, text in sorted(named):
        yield (*words, name), " ".join(text.split())
        yield from _commands(parser, (*words, name))


def _usage(parser: ArgumentParser, words: tuple[str, ...]) -> str:
    """Return a command with what it requires, its own names in capitals."""
    usage = " ".join(_help(parser, words).partition("\n\n")[0].split())
    head = f"plumbline {' '.join(words)}"
    required = re.sub(r" \[-[^\[\]]*(?:\[[^\]]*\][^\[\]]*)*\]", "", usage).removeprefix(f"usage: {head}")
    required = re.sub(r"(?<=[ \[])[a-z]+(?=[ \]]|$)", lambda name: name[0].upper(), required)
    return f"{head}{required}".replace("|", "\\|")


def _help(parser: ArgumentParser, words: tuple[str, ...]) -> str:
    """Return what `plumbline WORDS --help` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        parser.parse_args([*words, "--help"])
    return out.getvalue()


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


def _fields(schema: dict[str, Any], word: str = "field") -> str:
    rows = "\n".join(_rows(schema, is_linked=word == "field"))
    return f"| {word} | type | default | meaning |\n|---|---|---|---|\n{rows}"


def _rows(schema: dict[str, Any], *, is_linked: bool) -> Iterator[str]:
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field)
        kind = type_of(field) if is_linked else re.sub(r"\[\w+\]\(#\w+\)", "table", type_of(field))
        meaning = " ".join(field.get("description", "").split())
        cells = (f"`{name}`", kind.replace("table of table", "tables by name"), default, meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: dict[str, Any]) -> str:
    default = field.get("default")
    if isinstance(default, dict) and default:
        return "all defaults"
    return f"`{json.dumps(default)}`" if default is not None else "none" if "default" in field else ""


def type_of(field: dict[str, Any]) -> str:  # noqa: PLR0911 - one kind a line
    """Return the type of a property in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        choices = [choice for choice in field["anyOf"] if choice.get("type") != "null" and choice.get("const") != ""]
        return " or ".join(dict.fromkeys(type_of(choice) for choice in choices))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in field.get("enum", [field.get("const")]))
    if "oneOf" in field:
        return type_of(field["oneOf"][0])
    inner = field.get("items") or {"anyOf": field.get("prefixItems", [])}
    if field.get("type") == "array":
        return f"list of {type_of(inner)}".removesuffix(" of ")
    values = field.get("additionalProperties") or next(iter(field.get("patternProperties", {}).values()), None)
    if field.get("type") == "object":
        return f"table of {type_of(values)}" if isinstance(values, dict) and values else "table"
    if str(field.get("pattern", "")).startswith("^[a-z0-9][a-z0-9._-]"):
        return "name"
    named = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
    return f"{named.get(field.get('type', ''), 'any JSON')}{_bounds(field)}"


def _bounds(field: dict[str, Any]) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    if least is not None and most is not None and most < _MANY:
        return f", {least:g} to {most:g}"
    signs = (("minimum", "≥"), ("exclusiveMinimum", "above"), ("maximum", "≤"), ("exclusiveMaximum", "below"))
    bounds = [f"{sign} {field[key]:g}" for key, sign in signs if abs(field.get(key, _MANY)) < _MANY]
    return f", {', '.join(bounds)}" if bounds else ""


if __name__ == "__main__":
    if "--write" in sys.argv:
        for path, text in kept_pages().items():
            (Path(__file__).resolve().parents[2] / "docs" / path).write_text(text, "utf-8")
    else:
        print(json.dumps(pages()))
