"""Sentences for facts, verdicts, causes and numbers, shared by all outputs.

No other module turns a code of the judge into words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

from plumbline.schema.escape import MAX_CHARS
from plumbline.schema.escape import clean as clean_text
from plumbline.schema.fact import LIST, Fact, Statement
from plumbline.schema.record import RunRecord, named_time
from plumbline.schema.verdict import Cause, Divergence, Finding, Note, Outcome, PlatformResult

_KEYS = set(Fact.model_fields)

NONE = "—"
"""Symbol of a missing value."""

SYMBOLS: dict[Outcome, str] = {"pass": "✓", "drift": "✕", "inconclusive": "?", "invalid": "!"}


def sentence_of(statement: Statement) -> str:
    """Format a statement as a sentence.

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


def about(subject: str, name: str) -> str:
    """Return an explanatory text for a cause or certainty: `because`, `hint` or `sure`."""
    return templates()[f"{subject}.{name}"]


def note_line(note: Note) -> str:
    """Return a note as a sentence, with its workload."""
    return f"{note.workload}: {sentence_of(note.text)}" if note.workload else sentence_of(note.text)


def spoken(content: Any) -> Any:
    """Return a document's JSON values with facts formatted as sentences, for `--json`."""
    if isinstance(content, dict):
        if content.keys() == _KEYS:
            return sentence_of(Fact.model_validate(content))
        return {key: spoken(value) for key, value in content.items()}
    return [spoken(value) for value in content] if isinstance(content, list) else content


@cache
def templates() -> dict[str, str]:
    """Return the sentence template of each fact code."""
    import tomllib  # of Python 3.11: an environment of the upgrade gate, which may be of 3.10, writes no sentence

    groups = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))
    return {f"{subject}.{name}": text for subject, entries in groups.items() for name, text in entries.items()}


@cache
def explanations() -> dict[str, dict[str, str]]:
    """Return the explanation of each verdict or cause: `group`, `meaning`, `evidence` and `do`."""
    import tomllib

    return tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))


class _Sentence(Formatter):
    """Formatter that accepts clauses, lists and non-finite numbers."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - of the base class
        return kwargs.get(key, "missing")

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.endswith("s"):  # a plural, such as {num:rows}
            return counted(value, format_spec) if isinstance(value, int) else f"{_shown(value)} {format_spec}"
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return format(value, format_spec) if is_number and format_spec else _shown(value)


def counted(num: int, plural: str) -> str:
    """Format a number with its noun: `1 night`, `2 nights`."""
    return f"{num} {plural if num != 1 or plural == 'series' else plural[:-1]}"


def _shown(value: Any) -> str:
    if isinstance(value, Fact):
        return sentence_of(value)
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return str(value)


_MOST_NAMES = 3
_SHARES = ("relative", "absolute")
_SURE_ORDER = {"confirmed": 0, "likely": 1, "unattributed": 2}


def clean(text: object, limit: int = MAX_CHARS) -> str:
    """Return one printable line of limited length from any text."""
    return clean_text(sentence_of(text) if isinstance(text, Fact) else text, limit)


def number(value: float | str | None) -> str:
    """Format a number with at most four digits.

    `None` becomes "missing".
    """
    if value is None or isinstance(value, str):
        return "missing" if value is None else clean(value, 80)
    if not math.isfinite(value):
        return "not finite"
    magnitude = abs(value)
    if value != 0 and (magnitude >= 1e6 or magnitude < 1e-3):
        return f"{value:.2e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if magnitude >= 1000 else f"{value:.4g}"


def amount(value: float | str | None, unit: str = "") -> str:
    """Format a finding's number with its unit; a share, relative or absolute, in percent."""
    if unit in _SHARES and isinstance(value, int | float):
        return percent(value)
    return f"{number(value)}{f' {clean(unit, 20)}' if unit and value is not None else ''}"


def source_of(against: str) -> str:
    """Describe what a finding compares with: `baseline of 2026-11-20 02:00`, where a record is named by its round."""
    kind, _, name = against.partition(" ")
    is_dated = kind == "baseline" and named_time(name) is not None
    return f"baseline of {when_of(name)}" if is_dated else clean(against, 100)


def percent(share: float | None, digits: int = 1) -> str:
    """Format a fraction in percent."""
    return NONE if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def seconds(value: float | None) -> str:
    """Format a duration in seconds."""
    if value is None or not math.isfinite(value) or value < 0:
        return NONE
    if value < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def size(num_bytes: float | None) -> str:
    """Format a number of bytes in binary units."""
    if num_bytes is None:
        return NONE
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def listed(names: Sequence[str]) -> str:
    """Join names as `a`, `a and b`, `a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def some_of(names: Sequence[str]) -> str:
    """Join the first names, with the number of further ones."""
    shown = [clean(name, 63) for name in names]
    if len(shown) <= _MOST_NAMES + 1:
        return listed(shown)
    return f"{', '.join(shown[:_MOST_NAMES])} and {len(shown) - _MOST_NAMES} more"


def place(divergence: Divergence | None) -> str:
    """Describe the first divergence (stage, step, module) in one line."""
    if divergence is None:
        return NONE
    parts = [f"{divergence.part} {divergence.stage}".strip()]
    if divergence.at:
        parts.append(clean(divergence.at, 120))
    if divergence.step is not None:
        parts.append(f"step {divergence.step}")
    if divergence.row is not None:
        parts.append(f"row {divergence.row}")
    return ", ".join(parts)


def top_cause(result: PlatformResult) -> Cause | None:
    """Return the first of the most certain causes."""
    return min(result.causes, key=lambda cause: _SURE_ORDER[cause.sure], default=None)


def deciding(result: PlatformResult) -> Finding | None:
    """Return the first finding that determines the verdict."""
    return next((finding for finding in result.findings if finding.outcome == result.verdict), None)


def by_rounding(result: PlatformResult) -> bool:
    """Return whether the runs differ by rounding only."""
    return any(note.code == "rounding" for note in result.notes)


def when_of(round_id: str, time: float | None = None) -> str:
    """Return the minute in a round's name (UTC); of a name without one that of `time`, else the name."""
    if (named := named_time(round_id)) is None and time is not None:
        named = datetime.fromtimestamp(time, timezone.utc)
    return clean(round_id, 63) if named is None else f"{named:%Y-%m-%d %H:%M}"


def pair_names(reference: RunRecord, candidate: RunRecord) -> tuple[str, str]:
    """Return what tells two records apart: their platforms, else their nights, else their ids or roles."""
    records = (reference, candidate)
    nights = [f"{each.platform} {each.started_at:%Y-%m-%d %H:%M}" for each in records]
    for names in ([each.platform for each in records], nights, [each.record_id for each in records]):
        if names[0] != names[1]:
            return names[0], names[1]
    return f"{reference.record_id} (reference)", f"{candidate.record_id} (candidate)"


def scale_of(results: Sequence[PlatformResult]) -> str:
    """Return the accuracies between which the results lie: chance, and the best possible where it is known."""
    measured = next((result for result in results if result.chance is not None), None)
    if measured is None:
        return ""
    best = f"; best possible {percent(measured.best_accuracy)}" if measured.best_accuracy is not None else ""
    return f"accuracy: chance {percent(measured.chance)}{best}"


def cause_line(result: PlatformResult) -> str:
    """Format the causes with certainty, most certain first.

    Without a cause: why the platform is unavailable, or that rounding is the only difference.
    """
    if result.causes:
        ordered = sorted(result.causes, key=lambda cause: _SURE_ORDER[cause.sure])
        return ", ".join(dict.fromkeys(f"{cause.code} ({cause.sure})" for cause in ordered))
    if result.unavailable:
        return clean(result.unavailable, 120)
    return "kernel: rounding only" if by_rounding(result) else NONE
