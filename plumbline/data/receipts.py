"""Receipt of an import: what was read, how, and which labels were taken for the same class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from plumbline.data.columns import Columns
from plumbline.data.rows import Place
from plumbline.schema.manifest import Manifest, Receipt

__all__ = ["Reading", "receipt_lines"]

_MOST_NAMED = 6
_MOST_NOTES = 20


@dataclass(slots=True)
class Reading:
    """Receipt in the making: each reader adds what it read."""

    files: int = 0
    lines: int = 0
    rows: int = 0
    read_as: dict[str, None] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)
    spans: int = 0
    first_span: Place | None = None
    spellings: dict[str, dict[str, None]] = field(default_factory=dict)

    def add_text(self, read_as: str, lines: int) -> None:
        """Add a file's format, and its number of lines or rows."""
        self.read_as[read_as] = None
        self.lines += lines

    def add_spans(self, spans: int, first: Place | None) -> None:
        """Add a file's rows of several lines, and the first of them."""
        self.spans += spans
        self.first_span = self.first_span or first

    def add_rows(self, read_as: str, rows: int, columns: Columns) -> None:
        """Add a split that was read as a whole."""
        self.files += 1
        self.rows += rows
        self.add_text(read_as, rows)
        self.add_columns(columns)

    def add_columns(self, columns: Columns) -> None:
        """Add the columns that a file was read by."""
        roles = (("text", columns.text), ("second text", columns.pair), ("label", columns.label))
        self.columns[", ".join(f"{role} {name!r}" for role, name in roles if name is not None)] = None

    def add_label(self, name: str, spelling: str) -> None:
        """Add a label as the file spells it."""
        known = self.spellings.setdefault(name, {})
        if len(known) <= _MOST_NAMED:
            known[spelling] = None

    def receipt(self, keys: Mapping[str, str], spelling: Mapping[str, str]) -> Receipt:
        """Return the receipt; `keys` names files within the source, `spelling` the classes of merged labels."""
        notes = []
        if self.first_span:
            first = str(self.first_span._replace(file=keys.get(self.first_span.file, self.first_span.file)))
            many = f"{self.spans:,} rows of several lines, the first: {first}"
            notes.append(many if self.spans > 1 else f"1 row of several lines: {first}")
        if self.empty:
            notes.append(f"files without a row: {_named(keys.get(name, name) for name in self.empty)}")
        for name, labels in self._merged(spelling).items():
            if len(labels) > 1:
                notes.append(f"labels read as the class {name}: {_named(map(ascii, labels))}")
        return Receipt(
            files=self.files, lines=self.lines, rows=self.rows, read_as=tuple(self.read_as)[:_MOST_NOTES],
            columns=tuple(self.columns)[:_MOST_NOTES], notes=tuple(notes)[:_MOST_NOTES],
        )  # fmt: skip

    def _merged(self, spelling: Mapping[str, str]) -> dict[str, list[str]]:
        merged: dict[str, list[str]] = {}
        for name in sorted(self.spellings):
            merged.setdefault(spelling.get(name, name), []).extend(sorted(self.spellings[name]))
        return merged


def receipt_lines(manifest: Manifest) -> list[str]:
    """Return what was read, and how, a line each; nothing for generated data."""
    receipt = manifest.receipt
    if receipt is None:
        return []
    kept = sum(shard.num_rows for shard in manifest.shards)
    files = "1 file" if receipt.files == 1 else f"{receipt.files:,} files"
    counts = f"read {receipt.lines:,} lines, {receipt.rows:,} rows of {files}"
    counts += f"; {kept:,} rows kept" if kept != receipt.rows else ""
    return [counts, *receipt.read_as, *receipt.columns, *receipt.notes]


def _named(names: Iterable[str]) -> str:
    known = list(names)
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    return ", ".join(known[:_MOST_NAMED]) + more
