"""Users' data files, generated: the same forty reviews in every layout."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["FILES", "ROWS", "Case", "make"]

TEXTS = (
    "It works; I like it, really", 'The "best" kettle, so far', "Grüße aus Köln: très bien — 很好",
    "broken\tafter a day", "never again | refund please",
)  # fmt: skip
ROWS = [(f"{TEXTS[i % 5]} ({i})", ("negative", "positive")[i % 5 < 3]) for i in range(40)]
PLAIN = [(f"row {i} of it", label) for i, (_, label) in enumerate(ROWS)]
INTEGERS = [(text, int(label == "positive")) for text, label in ROWS]
BOOLEANS = [(text, label == "positive") for text, label in ROWS]


@dataclass(frozen=True)
class Case:
    """File name, content, import options, and expected result."""

    name: str
    content: bytes | dict[str, bytes]
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[Any] | None = None
    """What the rows are, where they are not `ROWS`."""
    same_as: str = ""
    """Cases of one group hold the same rows: their content digests are equal."""
    classes: tuple[str, ...] = ("negative", "positive")
    refused: str = ""
    """A part of the one line, where the file is refused."""


def delimited(rows, delimiter=",", header=("text", "label"), encoding="utf-8", end="\n", **how) -> bytes:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end, **how)
    writer.writerows([header, *rows] if header else rows)
    return stream.getvalue().encode(encoding)


def objects(rows, names=("text", "label")) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]


def lines(rows, names=("text", "label"), end="\n") -> bytes:
    return "".join(json.dumps(item, ensure_ascii=False) + end for item in objects(rows, names)).encode()


def document(value) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode()


def parquet(rows, names=("text", "label"), types=(None, None), **how) -> bytes:
    sink = io.BytesIO()
    columns = {name: pa.array([row[i] for row in rows], types[i]) for i, name in enumerate(names)}
    pq.write_table(pa.table(columns), sink, **how)
    return sink.getvalue()


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def named(rows) -> list[tuple[str, str]]:
    """Return rows with the names of their classes."""
    return [(text, str(label).lower()) for text, label in rows]


def dictionary(rows) -> bytes:
    table = pa.table(
        {"text": [row[0] for row in rows], "label": pa.array([row[1] for row in rows]).dictionary_encode()}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


QUOTES = [(f'"{text}' if i == 20 else f'{text}"' if i == 23 else text, label) for i, (text, label) in enumerate(PLAIN)]
"""Two lone quotes, as in a text that somebody cut; the rows between them must not become one text."""
TWO_LINES = [(f"{text}\nsecond line", label) for text, label in ROWS]
BREAKS = [(f"Hello, you\nbye, {i}", label) for i, (_, label) in enumerate(ROWS)]


def plain(rows, delimiter, header="text{}label") -> bytes:
    """Return delimited text without any quoting."""
    return "".join(f"{line}\n" for line in (header.format(delimiter), *map(delimiter.join, rows))).encode()


STARS = [(text, 1 + i % 5) for i, (text, _) in enumerate(ROWS)]
CODES = [(text, f"{9 + i % 2:02}") for i, (text, _) in enumerate(ROWS)]
LISTED = [(text, ("1", "01")[i % 2]) for i, (text, _) in enumerate(ROWS)]
PAIRS = [(f"premise {i}", f"hypothesis {i}", ("entailment", "neutral", "contradiction")[i % 3]) for i in range(40)]
SHARDS = {f"data/train-{i:05d}-of-00004.parquet": parquet(ROWS[10 * i : 10 * i + 10]) for i in range(4)}
SPLITS = {"train.csv": delimited(ROWS[:30]), "validation.csv": delimited(ROWS[30:])}
WORDS = ("negative", "positive")

FILES = (
    # Delimited text.
    Case("comma.csv", delimited(ROWS), same_as="rows"),
    Case("semicolon.csv", delimited(ROWS, ";"), same_as="rows"),
    Case("tab.tsv", delimited(ROWS, "\t"), same_as="rows"),
    Case("pipe.csv", delimited(ROWS, "|"), same_as="rows"),
    Case("all-quoted.csv", delimited(ROWS, quoting=csv.QUOTE_ALL, end="\r\n"), same_as="rows"),
    Case("excel-bom.csv", delimited(ROWS, ";", encoding="utf-8-sig", end="\r\n"), same_as="rows"),
    Case("excel-unicode.tsv", delimited(ROWS, "\t", encoding="utf-16", end="\r\n"), same_as="rows"),
    Case(
        "glue.tsv",
        b"text\tlabel\n" + "".join(f'"{t}\t{x}\n' for t, x in PLAIN).encode(),
        rows=[(f'"{text}', label) for text, label in PLAIN],
    ),
    Case(
        "more-columns.csv",
        delimited([(i, *row, "x") for i, row in enumerate(ROWS)], header=("", "review", "sentiment", "note")),
        same_as="rows",
    ),
    Case("line-breaks.csv", delimited(TWO_LINES), rows=TWO_LINES),
    Case("lone-quotes.tsv", plain(QUOTES, "\t"), rows=QUOTES),
    Case("line-breaks-with-commas.csv", delimited(BREAKS), rows=BREAKS),
    Case("line-breaks.tsv", delimited(BREAKS, "\t"), rows=BREAKS),
    Case(
        "sms.tsv",
        "".join(f"{label}\t{text}\n" for text, label in PLAIN).encode(),
        {"header": False, "text_column": "2", "label_column": "1"},
        rows=PLAIN,
    ),
    Case("spaces.csv", delimited([(t, f"{x}{' ' * (i % 3)}") for i, (t, x) in enumerate(ROWS)]), same_as="rows"),
    Case(
        "accents.csv",
        delimited([(t, ("caf\u00e9", "cafe\u0301", "th\u00e9")[i % 3]) for i, (t, _) in enumerate(ROWS)]),
        rows=[(t, ("caf\u00e9", "caf\u00e9", "th\u00e9")[i % 3]) for i, (t, _) in enumerate(ROWS)],
        classes=("caf\u00e9", "th\u00e9"),
    ),
    Case("codes.csv", delimited(CODES), rows=CODES, classes=("09", "10")),
    Case("both-listed.csv", delimited(LISTED), {"labels": ("1", "01")}, rows=LISTED, classes=("1", "01")),
    # JSON.
    Case("lines.jsonl", lines(ROWS), same_as="rows"),
    Case("lines-bom.ndjson", b"\xef\xbb\xbf" + lines(ROWS, end="\r\n"), same_as="rows"),
    Case("array.json", document(objects(ROWS)), same_as="rows"),
    Case("lines-called.json", lines(ROWS), same_as="rows"),
    Case("wrapped.json", document({"version": "1.0", "data": objects(ROWS)}), same_as="rows"),
    Case("booleans.jsonl", lines(BOOLEANS), rows=named(BOOLEANS), classes=("false", "true"), same_as="booleans"),
    Case(
        "python-booleans.csv", delimited(BOOLEANS), rows=named(BOOLEANS), classes=("false", "true"), same_as="booleans"
    ),
    # Parquet.
    Case("strings.parquet", parquet(ROWS), same_as="rows"),
    Case("categories.parquet", dictionary(ROWS), same_as="rows"),
    Case(
        "integers.parquet",
        parquet(INTEGERS, types=(None, pa.int8())),
        rows=named(INTEGERS),
        classes=("0", "1"),
        same_as="integers",
    ),
    Case(
        "floats.csv",
        delimited([(text, float(label)) for text, label in INTEGERS]),
        rows=named(INTEGERS),
        classes=("0", "1"),
        same_as="integers",
    ),
    # Compression and layouts.
    Case("compressed.csv.gz", gzip.compress(delimited(ROWS)), same_as="rows"),
    Case("two-members.jsonl.gz", gzip.compress(lines(ROWS[:20])) + gzip.compress(lines(ROWS[20:])), same_as="rows"),
    Case("compressed.jsonl.zst", zstd(lines(ROWS)), same_as="rows"),
    Case("compressed.tsv.bz2", bz2.compress(delimited(ROWS, "\t")), same_as="rows"),
    Case("gzip-inside.csv", gzip.compress(delimited(ROWS)), same_as="rows"),
    Case("shards", SHARDS, same_as="rows"),
    Case(
        "globbed/*.jsonl",
        {f"globbed/part-{i}.jsonl": lines(ROWS[20 * i : 20 * i + 20]) for i in range(2)},
        same_as="rows",
    ),
    Case("splits", SPLITS, same_as="splits"),
    Case(
        "spark",
        {"part-0.csv": delimited(ROWS), "part-1.csv": b"", "part-2.csv": b"text,label\n", "_SUCCESS": b""},
        same_as="rows",
    ),
    Case(
        "splits-hf",
        {
            "README.md": b"# mine",
            "data/train-0.jsonl.gz": gzip.compress(lines(ROWS[:30])),
            "data/validation-0.jsonl.gz": gzip.compress(lines(ROWS[30:])),
        },
        same_as="splits",
    ),
    Case(
        "pairs.tsv",
        delimited(PAIRS, "\t", header=("sentence1", "sentence2", "label")),
        rows=PAIRS,
        same_as="pairs",
        classes=("contradiction", "entailment", "neutral"),
    ),
    Case(
        "pairs.jsonl",
        lines(PAIRS, ("premise", "hypothesis", "label")),
        rows=PAIRS,
        same_as="pairs",
        classes=("contradiction", "entailment", "neutral"),
    ),
    Case("stars-named.csv", delimited(STARS), {"labels": (1, 2, 3, 4, 5)}, rows=named(STARS), classes=tuple("12345")),
    Case("labels-given.csv", delimited(ROWS), {"labels": ("positive", "negative")}, classes=("positive", "negative")),
    # Refused in one line.
    Case("lone-quotes.csv", plain(QUOTES, ","), refused="line 22: a quote opens a text that ends in line 25, and each"),
    Case("lone-quote.csv", plain(QUOTES[:22] + PLAIN, ","), refused="line 22: not CSV in UTF-8: unexpected end"),
    Case(
        "lone-quotes-around-a-class.csv",
        plain([*[("a", "good")] * 9, ('"b', "good"), *[("c", "bad")] * 9, ("and", "good"), ('d"', "good")], ","),
        refused="line 11: a quote opens a text that ends in line 22, and each",
    ),
    Case("one-long-line.csv", b"text,label\n" + b"a," * 500_000, refused="line 2: longer than 800,000 characters"),
    Case("two-files-in-one.csv", delimited(PLAIN) * 2, refused="line 42: repeats the header"),
    Case(
        "zeros.csv",
        delimited([(t, ("0", "1", "01")[i % 3]) for i, (t, _) in enumerate(ROWS)]),
        refused="the labels '01' and '1' differ only in case, spaces, width or leading zeros",
    ),
    Case(
        "wide.csv",
        delimited([(t, ("0", "1", "\uff11")[i % 3]) for i, (t, _) in enumerate(ROWS)]),
        refused="differ only in case, spaces, width or leading zeros",
    ),
    Case(
        "inner-spaces.csv",
        delimited([(t, ("so so", "so  so", "good")[i % 3]) for i, (t, _) in enumerate(ROWS)]),
        refused="differ only in case, spaces, width or leading zeros",
    ),
    Case("no-rows", {"a.csv": b"", "b.csv": b"text,label\n"}, refused="has 0 rows, fewer than 10"),
    Case("no-header.jsonl", lines(ROWS), {"header": False}, refused="header: is set to no header"),
    Case("stars.csv", delimited(STARS), refused="a class: --labels=1,2,3,4,5, in a suite labels = [1, 2, 3, 4, 5])"),
    Case("scores.csv", delimited([(text, i / 4) for i, (text, _) in enumerate(ROWS)]), refused="not regression"),
    Case("latin-1.csv", delimited([("Grüße", "a"), *PLAIN], encoding="latin-1"), refused="line 2: not CSV in UTF-8"),
    Case("no-header.csv", delimited(PLAIN, header=None), refused="the column of the label is ambiguous"),
    Case(
        "two-texts.csv",
        delimited([(*row, "x") for row in ROWS], header=("review", "label", "title")),
        refused="it could be any of: review, title",
    ),
    Case(
        "misspelt.csv",
        delimited(PLAIN, header=("texts", "label")),
        {"text_column": "txts"},
        refused="did you mean `texts`?",
    ),
    Case("cut-off.csv.gz", gzip.compress(delimited(ROWS))[:-30], refused="damaged or cut off"),
    Case("cut-off.jsonl.zst", zstd(lines(ROWS * 50))[:-30], refused="damaged or cut off"),
    Case("workbook.csv", b"PK\x03\x04" + bytes(100), refused="is a ZIP archive"),
    Case("rows.xlsx", b"PK\x03\x04" + bytes(100), refused="unsupported file type"),
    Case(
        "ids-as-labels.csv",
        delimited([(text, f"id-{i}") for i, (text, _) in enumerate(ROWS)]),
        refused="the column does not contain classes",
    ),
    Case(
        "cases.csv",
        delimited([(text, label.title() if i % 2 else label) for i, (text, label) in enumerate(ROWS)]),
        refused="differ only in case, spaces, width or leading zeros",
    ),
    Case("null.csv", delimited([*PLAIN, ("text", r"\N")]), refused="looks like a missing value"),
    Case("excel.csv", delimited([*PLAIN, ("text", "#N/A")]), refused="looks like a missing value"),
    Case("nan.csv", delimited([*PLAIN, ("text", "NaN")]), refused="looks like a missing value"),
    Case("mixed-types", {"a.csv": delimited(ROWS), "b.jsonl": lines(ROWS)}, refused="files of different types"),
    Case("multi-label.jsonl", lines([(text, [label]) for text, label in ROWS]), refused="the label is a list"),
    Case(
        "columns.json",
        document({"text": [t for t, _ in ROWS], "label": [x for _, x in ROWS]}),
        refused="is not a JSON array",
    ),
    Case(
        "hidden.csv",
        delimited([(text, -1 if i % 3 else 0) for i, (text, _) in enumerate(ROWS)]),
        refused="-1 often marks a hidden label",
    ),
)


def make(case: Case, folder: Path) -> str:
    """Write the case's files below `folder`; return the source to import."""
    files = case.content if isinstance(case.content, dict) else {case.name: case.content}
    root = folder / case.name if isinstance(case.content, dict) and "*" not in case.name else folder
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return str(folder / case.name)
