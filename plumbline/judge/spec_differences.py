"""Differences between two specs: keys, and dataset classes and rows. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plumbline.records import LoadedRecord
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.fact import Statement, fact, joined
from plumbline.schema.spec import PARTS, RunSpec
from plumbline.schema.verdict import Finding

_MAX_KEYS = 40
_MAX_NAMED = 5
_MAX_VALUE = 120
_MAX_LABELS = 10_000
_NONE = "none"
_KNOWN_OTHERWISE = ("data.class_names", "data.manifest_sha256")


def spec_findings(reference: LoadedRecord, candidate: LoadedRecord) -> list[Finding]:
    """Return a finding for each spec key that differs, with both values."""
    left, right = (dict(_leaves(side.record.spec.model_dump(mode="json"))) for side in (reference, candidate))
    keys = [key for key in dict.fromkeys([*left, *right]) if left.get(key) != right.get(key)]
    findings = [_finding("record.spec", key, left.get(key), right.get(key)) for key in keys[:_MAX_KEYS]]
    if len(keys) > _MAX_KEYS:
        findings.append(_finding("record.spec", fact("spec.more-keys", num=len(keys) - _MAX_KEYS)))
    if any(key in keys for key in _KNOWN_OTHERWISE):
        findings += _dataset(reference, candidate)
    return findings


def _leaves(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf value with its dotted key."""
    for name, value in content.items():
        if isinstance(value, dict) and prefix + name not in PARTS:
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, dict):
            yield prefix + name, "present"
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _finding(check: str, metric: Statement, left: Any = None, right: Any = None, detail: Statement = "") -> Finding:
    observed, limit = (None if value is None and detail else _text(value) for value in (right, left))
    return Finding(check=check, outcome="invalid", metric=metric, observed=observed, limit=limit, detail=detail)


def _text(value: Any) -> str:
    text = _NONE if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


def _dataset(reference: LoadedRecord, candidate: LoadedRecord) -> Iterator[Finding]:
    """Yield the differences between two datasets, as far as recorded."""
    left, right = reference.record.evidence.data, candidate.record.evidence.data
    if left is None or right is None:
        side = "reference" if left is None else "candidate"
        yield _finding("record.data", "rows", detail=fact("spec.unread", side=side))
        return
    if left.tokenizer_sha256 != right.tokenizer_sha256:
        yield _finding("record.data", fact("spec.tokenizer"), left.tokenizer_sha256, right.tokenizer_sha256)
    if left.receipt and right.receipt:
        for text in right.receipt.differences(left.receipt):
            yield _finding("record.data", "import", detail=text)
    sizes = [sum(shard.num_rows for shard in side.shards) for side in (left, right)]
    if sizes[0] != sizes[1]:
        yield _finding("record.data", fact("spec.dataset-rows"), sizes[0], sizes[1])
    try:
        rows = reference.rows, candidate.rows
    except InvalidInputError as error:
        yield _finding("record.data", "rows", detail=str(error))
        return
    if all(rows):
        names = tuple(label_names(side.record.spec) for side in (reference, candidate))
        yield from _classes(rows, names)
        yield from _texts(rows)
        yield from _labels(rows, names)


def label_names(spec: RunSpec | CapturedSpec) -> dict[int, str]:
    """Map each label value in `rows.parquet` to its name.

    The value is the first 8 bytes of a digest.
    """
    if isinstance(spec, CapturedSpec):
        return {}
    names = spec.data.class_names or tuple(f"label {number}" for number in range(spec.model.num_labels or 0))
    return {
        int.from_bytes(bytes.fromhex(digest_bytes(number.to_bytes(8, "little", signed=True)))[:8], "little"): name
        for number, name in enumerate(names[:_MAX_LABELS])
    }


DatasetRows = dict[str, NDArray[Any]]
Names = Mapping[int, str]


def _classes(rows: tuple[DatasetRows, DatasetRows], names: tuple[Names, ...]) -> Iterator[Finding]:
    """Yield findings for classes with different row counts."""
    counts = [
        Counter({_name(own, value): int(count) for value, count in zip(*_counted(side["label"]), strict=True)})
        for side, own in zip(rows, names, strict=True)
    ]
    differing = [name for name in sorted({*counts[0], *counts[1]}) if counts[0][name] != counts[1][name]]
    for name in differing[:_MAX_NAMED]:
        yield _finding("record.data", fact("spec.class-rows", name=name), counts[0][name], counts[1][name])
    if len(differing) > _MAX_NAMED:
        more = fact("spec.more-classes", num=len(differing) - _MAX_NAMED)
        yield _finding("record.data", fact("spec.rows-by-class"), detail=more)


def _counted(values: NDArray[Any]) -> tuple[list[int], list[int]]:
    found, counts = np.unique(values, return_counts=True)
    return found.tolist(), counts.tolist()


def _name(names: Names, value: int) -> str:
    return names.get(value, f"label {value:x}")


def _texts(rows: tuple[DatasetRows, DatasetRows]) -> Iterator[Finding]:
    """Yield how many texts only one side read."""
    for mine, other, side in ((*rows, "reference"), (*rows[::-1], "candidate")):
        only = ~np.isin(mine["text"], other["text"])
        if only.any():
            count, num_rows = int(only.sum()), len(only)
            rows_read = _numbers(mine["row_id"][only])
            detail = fact("spec.one-sided-rows", num=count, total=num_rows, side=side, rows=rows_read)
            yield _finding("record.data", fact("spec.one-sided-texts", side=side), detail=detail)


def _numbers(row_ids: NDArray[Any]) -> str:
    more = ", …" if len(row_ids) > _MAX_NAMED else ""
    return f"row{'s' if len(row_ids) > 1 else ''} {', '.join(map(str, row_ids[:_MAX_NAMED].tolist()))}{more}"


def _labels(rows: tuple[DatasetRows, DatasetRows], names: tuple[Names, ...]) -> Iterator[Finding]:
    """Yield findings for texts labelled with different classes."""
    changed, num_shared = _label_changes(rows, names)
    if not changed:
        return
    shown = joined(
        fact("spec.label", row=at, before=before, after=after)
        if at == here
        else fact("spec.moved-label", row=at, candidate=here, before=before, after=after)
        for at, here, before, after in changed[:_MAX_NAMED]
    )
    more = "; …" if len(changed) > _MAX_NAMED else ""
    detail = fact("spec.labels", num=len(changed), total=num_shared, shown=shown, more=more)
    yield _finding("record.data", fact("spec.same-text"), detail=detail)


def _label_changes(
    rows: tuple[DatasetRows, DatasetRows], names: tuple[Names, ...]
) -> tuple[list[tuple[int, int, str, str]], int]:
    """Return (reference row, candidate row, both classes), and compared texts' number."""
    once = [side["text"][_once(side["text"])] for side in rows]
    shared = np.intersect1d(once[0], once[1], assume_unique=True)
    places = [_places(side["text"], shared) for side in rows]
    pairs = (
        (int(at), int(here), _name(names[0], mine), _name(names[1], other))
        for at, here, mine, other in zip(
            rows[0]["row_id"][places[0]], rows[1]["row_id"][places[1]],
            rows[0]["label"][places[0]].tolist(), rows[1]["label"][places[1]].tolist(), strict=True,
        )
    )  # fmt: skip
    return sorted(pair for pair in pairs if pair[2] != pair[3]), len(shared)


def named_rows(reference: LoadedRecord, candidate: LoadedRecord) -> tuple[int, ...]:
    """Return the reference rows that the dataset findings mention."""
    rows = reference.rows, candidate.rows
    if not all(rows):
        return ()
    names = tuple(label_names(side.record.spec) for side in (reference, candidate))
    changed = [pair[0] for pair in _label_changes(rows, names)[0][:_MAX_NAMED]]
    only = rows[0]["row_id"][~np.isin(rows[0]["text"], rows[1]["text"])][:_MAX_NAMED]
    return (*changed, *only.tolist())


def _once(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return the indices of values that occur exactly once."""
    _, first, counts = np.unique(values, return_index=True, return_counts=True)
    single: NDArray[np.intp] = first[counts == 1]
    return single


def _places(values: NDArray[Any], wanted: NDArray[Any]) -> NDArray[np.intp]:
    order = np.argsort(values, kind="stable")
    found: NDArray[np.intp] = order[np.searchsorted(values, wanted, sorter=order)]
    return found
