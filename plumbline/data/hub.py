"""Rows of a dataset of the Hugging Face hub, by its name, through `datasets`."""

from __future__ import annotations

from collections.abc import Iterator

from plumbline.data.readers import Columns
from plumbline.data.rows import Row, checked_row
from plumbline.errors import InvalidInputError, UnavailableError

__all__ = ["read_hub"]

_EVALUATION_SPLITS = ("validation", "test")


def read_hub(name: str, columns: Columns) -> tuple[Iterator[Row], Iterator[Row] | None]:
    """The rows of `train`, and of `validation` or else `test` if the dataset has either with labels."""
    import datasets
    import datasets.exceptions

    repository, _, config = name.partition(":")
    datasets.disable_progress_bars()
    try:
        splits = datasets.load_dataset(repository, config or None)
    except (OSError, RuntimeError, ValueError, datasets.exceptions.DatasetsError) as error:
        # Offline, unknown, gated and script-only datasets all end here; the first line says which.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UnavailableError(
            f"the Hugging Face hub did not give this dataset: {reason}",
            where=name,
            key="path",
            mend="check the name and the network, or export it to CSV, JSONL or Parquet and give that file",
        ) from error
    if "train" not in splits:
        raise InvalidInputError(f"has no split `train` (found: {', '.join(splits)})", where=name, key="path")
    usable = [split for split in _EVALUATION_SPLITS if split in splits and _labelled(splits[split], columns)]
    evaluation = usable[0] if usable else ""
    train = _rows(name, "train", splits["train"], columns)
    return train, _rows(name, evaluation, splits[evaluation], columns) if evaluation else None


def _labelled(split: object, columns: Columns) -> bool:
    """Hidden test labels are -1 on the hub: such a split evaluates nothing."""
    if not columns.labelled:
        return True
    labels = split[columns.label] if columns.label in split.column_names else []  # type: ignore[attr-defined,index]
    return any(label is not None and label != -1 for label in labels)


def _rows(name: str, split: str, rows: object, columns: Columns) -> Iterator[Row]:
    found = rows.column_names  # type: ignore[attr-defined]
    for column in columns.names:
        if column not in found:
            mend = "name the columns with --text-column and --label-column"
            why = f"there is no such column (found: {', '.join(found[:12])})"
            raise InvalidInputError(why, where=f"{name}, {split}", key=column, mend=mend)
    for number, values in enumerate(rows):  # type: ignore[arg-type,var-annotated]
        yield checked_row(
            values[columns.text],
            values.get(columns.label),
            labelled=columns.labelled,
            where=f"{name}, {split} row {number + 1}",
            text_key=columns.text,
            label_key=columns.label,
        )
