"""Parts of a record that a test writes by hand."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import save_file

from plumbline.schema.digest import digest_file
from plumbline.schema.manifest import DataFile
from plumbline.schema.record import RECORD_NAME


def record_parts(folder: Path) -> tuple[DataFile, ...]:
    """Return the files of `folder` as a record's parts, by name."""
    return tuple(
        DataFile(key=path.relative_to(folder).as_posix(), size=path.stat().st_size, sha256=digest_file(path))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != RECORD_NAME
    )


def parquet_of(columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Return a Parquet file of these columns, as the trainer writes it."""
    file = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), file, compression="zstd")
    return file.getvalue()


def write_arrays(folder: Path, arrays: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[DataFile, ...]:
    """Write a record's arrays as its parts; return the parts."""
    folder.mkdir(parents=True)
    for name, tensors in arrays.items():
        if name == "rows":
            (folder / "rows.parquet").write_bytes(parquet_of(tensors))
        elif tensors:
            contiguous = {key: np.ascontiguousarray(value) for key, value in tensors.items()}
            save_file(contiguous, folder / f"{name}.safetensors")
    return record_parts(folder)
