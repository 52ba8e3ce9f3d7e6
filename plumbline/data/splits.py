"""Rows of a dataset of the library `datasets`, by split: loaded from the Hub, or saved by `save_to_disk`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.data.receipts import Reading
from plumbline.data.rows import ColumnOptions, Place, RawRow, checked_row
from plumbline.errors import ConfigurationError, InvalidInputError
from plumbline.schema.suite_file import suggest_or_list

_EVALUATION_SPLITS = ("validation", "test")


@dataclass(frozen=True, slots=True)
class Splits:
    """A dataset's name for messages, and the chosen splits; `None` means the usual one."""

    name: str
    train: str | None = None
    evaluation: str | None = None


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Rows of the chosen splits, and declared classes."""

    train: Iterator[RawRow]
    evaluation: Iterator[RawRow] | None
    classes: tuple[str, ...] | None


def read_splits(splits: Any, chosen: Splits, options: ColumnOptions, reading: Reading) -> SplitRows:
    """Return the rows of a loaded dataset; evaluate on the chosen split, else `validation` or `test`."""
    if not options.header:
        raise ConfigurationError(
            "is set to no header, which only CSV and TSV may lack", where=chosen.name, key="header"
        )
    train = _known(chosen, "split", chosen.train or "train", splits)
    evaluation = _evaluation(chosen, train, splits, options)
    columns = options.resolve(splits[train].column_names, f"{chosen.name}, {train}")
    feature = splits[train].features.get(columns.label) if columns.label else None
    names = tuple(getattr(feature, "names", None) or ()) or None
    rows = [
        _rows(f"{chosen.name}, {split}", splits[split], options, names, reading)
        for split in (train, evaluation) if split
    ]  # fmt: skip
    return SplitRows(rows[0], rows[1] if evaluation else None, names)


def read_saved(folder: Path, chosen: Splits, options: ColumnOptions, reading: Reading) -> SplitRows:
    """Return the rows of a folder written by `Dataset.save_to_disk` or `DatasetDict.save_to_disk`."""
    import datasets

    datasets.disable_progress_bars()
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # `datasets` raises the errors of its libraries, and bare ones of its own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        text = f"cannot be read as a saved dataset: {reason}"
        raise InvalidInputError(text, where=chosen.name, hint="save it again with `save_to_disk`") from error
    splits = saved if isinstance(saved, datasets.DatasetDict) else {"train": saved}
    return read_splits(splits, chosen, options, reading)


def _known(chosen: Splits, key: str, split: str, splits: Any) -> str:
    if split not in splits:
        hint = suggest_or_list(split, list(splits))
        raise ConfigurationError(f"the split {split!r} does not exist", where=chosen.name, key=key, hint=hint)
    return split


def _evaluation(chosen: Splits, train: str, splits: Any, options: ColumnOptions) -> str:
    if chosen.evaluation:
        return _known(chosen, "evaluation_split", chosen.evaluation, splits)
    known = [split for split in _EVALUATION_SPLITS if split in splits and split != train]
    return next((split for split in known if _is_labelled(splits[split], options)), "")


def _is_labelled(split: Any, options: ColumnOptions) -> bool:
    """Return whether a split has labels; the Hub marks hidden labels with -1."""
    if not options.labelled:
        return True
    try:
        label = options.resolve(split.column_names, "").label
    except InvalidInputError:
        return False
    return any(value is not None and value != -1 for value in split[label])


def _rows(
    where: str, rows: Any, options: ColumnOptions, names: Sequence[str] | None, reading: Reading
) -> Iterator[RawRow]:
    columns = options.resolve(rows.column_names, where)
    for number, values in enumerate(rows, start=1):
        place = Place(where, "row", number)
        if names is not None and columns.label is not None:
            label = _name(values[columns.label], names, str(place), columns.label)
            yield checked_row({**values, columns.label: label}, columns, place)
        else:
            yield checked_row(values, columns, place)
    reading.add_rows("the library datasets", len(rows), columns)


def _name(label: Any, names: Sequence[str], where: str, key: str) -> Any:
    """Return a class's declared name."""
    if isinstance(label, int) and not isinstance(label, bool):
        if not 0 <= label < len(names):
            text = f"the label {label} is not one of the {len(names)} classes"
            raise InvalidInputError(
                text, where=where, key=key, hint="-1 marks a hidden label: choose a different split"
            )
        return names[label]
    return label
