"""Sentences of facts: the only place where a code of the judge becomes words."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from plumbline.schema.fact import LIST, Fact, Statement
from plumbline.schema.verdict import Note

_KEYS = set(Fact.model_fields)


def sentence_of(statement: Statement) -> str:
    """Return the sentence of a statement; words from elsewhere stay as they are.

    A code that this release does not know, from a verdict of a later one, is shown with its values.
    """
    if isinstance(statement, str):
        return statement
    if statement.code == LIST:
        return "; ".join(_shown(part) for part in statement.parts)
    template = templates().get(statement.code)
    if template is None:
        values = ", ".join(f"{name}={_shown(value)}" for name, value in statement.values.items())
        return f"{statement.code}{f' ({values})' if values else ''}"
    return _Sentence().vformat(template, (), statement.values)


def note_line(note: Note) -> str:
    """Return a note's sentence, with its workload."""
    return f"{note.workload}: {sentence_of(note.text)}" if note.workload else sentence_of(note.text)


def spoken(content: Any) -> Any:
    """Return a document's JSON values with sentences in place of facts: the contract of `--json`."""
    if isinstance(content, dict):
        if content.keys() == _KEYS:
            return sentence_of(Fact.model_validate(content))
        return {key: spoken(value) for key, value in content.items()}
    return [spoken(value) for value in content] if isinstance(content, list) else content


@cache
def templates() -> dict[str, str]:
    """Return the template of each code."""
    import tomllib  # of Python 3.11: an environment of the upgrade gate, which may be of 3.10, writes no sentence

    groups = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))
    return {f"{subject}.{name}": text for subject, entries in groups.items() for name, text in entries.items()}


@cache
def explanations() -> dict[str, dict[str, str]]:
    """Return `group`, `meaning`, `evidence` and `do` of each code of a verdict or a cause, in order."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))


class _Sentence(Formatter):
    """Formatter whose values may be clauses, lists and numbers that are not finite."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - of the base class
        return kwargs.get(key, "missing")

    def format_field(self, value: Any, format_spec: str) -> str:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return format(value, format_spec) if is_number and format_spec else _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, Fact):
        return sentence_of(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
