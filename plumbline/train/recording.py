"""Writing the record: its parts first, `record.json` last and all at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from plumbline.digest import canonical_json
from plumbline.errors import WRONG_PATH, ConfigurationError, DiskFullError, UnavailableError
from plumbline.schema.record import RECORD_NAME, RunRecord

__all__ = ["PARTS", "clear_parts", "write_parts", "write_record"]

PARTS = ("batches", "sketches", "state", "evaluation", "capture")
_ROWS = "rows.parquet"


def clear_parts(folder: Path) -> None:
    """Take an older record away, its mark first, so that no half of it is ever taken for a whole."""
    for name in (RECORD_NAME, f"{RECORD_NAME}.part", _ROWS, *(f"{part}.safetensors" for part in PARTS)):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            what = f"cannot be taken away: {error.strerror}"
            if error.errno not in WRONG_PATH:
                raise UnavailableError(what, where=str(folder / name)) from error
            raise ConfigurationError(what, where=str(folder / name), mend="train into another folder") from error


def write_parts(folder: Path, arrays: dict[str, dict[str, NDArray[Any]]], rows: pa.Table | None) -> list[str]:
    """Write every part; the names of the files."""
    names = []
    try:
        for part, tensors in arrays.items():
            if tensors:
                name = f"{part}.safetensors"
                save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / name)
                (folder / name).chmod(0o644)  # safetensors keeps others from reading
                names.append(name)
        if rows is not None:
            pq.write_table(rows, folder / _ROWS, compression="zstd")
            names.append(_ROWS)
    except OSError as error:
        raise DiskFullError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    return names


def write_record(folder: Path, record: RunRecord) -> None:
    """The mark that the record is whole."""
    part = folder / f"{RECORD_NAME}.part"
    try:
        with part.open("wb") as file:
            file.write(canonical_json(record.to_json()))
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / RECORD_NAME)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DiskFullError(f"cannot be written: {error.strerror}", where=str(folder)) from error
