"""Files of a record, written parts first, then `record.json` atomically."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import WRONG_PATH, ConfigurationError, UnavailableError
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.train.failure import writing

PARTS = ("batches", "sketches", "state", "evaluation", "answers", "capture")
_ROWS = "rows.parquet"


def clear_parts(folder: Path) -> None:
    """Remove an older record, its completion marker first."""
    for name in (RECORD_NAME, f"{RECORD_NAME}.part", _ROWS, *(f"{part}.safetensors" for part in PARTS)):
        try:
            (folder / name).unlink(missing_ok=True)
        except OSError as error:
            text = f"cannot be removed: {error.strerror}"
            if error.errno not in WRONG_PATH:
                raise UnavailableError(text, where=str(folder / name)) from error
            raise ConfigurationError(text, where=str(folder / name), hint="train into a different folder") from error


def write_parts(folder: Path, arrays: dict[str, dict[str, NDArray[Any]]], rows: pa.Table | None) -> list[str]:
    """Write all of the record's arrays; return the file names."""
    names = []
    with writing(folder):
        for part, tensors in arrays.items():
            if tensors:
                name = f"{part}.safetensors"
                save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, folder / name)
                (folder / name).chmod(0o644)  # safetensors removes read permission for others
                names.append(name)
        if rows is not None:
            pq.write_table(rows, folder / _ROWS, compression="zstd")
            names.append(_ROWS)
    return names


def write_record(folder: Path, record: RunRecord) -> None:
    """Write `record.json`, which marks the record as complete."""
    part = folder / f"{RECORD_NAME}.part"
    with writing(folder):
        try:
            with part.open("wb") as file:
                file.write(canonical_json(record.to_json()))
                file.flush()
                os.fsync(file.fileno())
            part.replace(folder / RECORD_NAME)
        except OSError:
            part.unlink(missing_ok=True)
            raise
