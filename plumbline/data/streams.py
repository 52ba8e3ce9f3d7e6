"""Byte streams of users' files, decompressed, with damage reported in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from plumbline.errors import InvalidInputError

BUFFER_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_FOREIGN = {b"PK\x03\x04": "a ZIP archive", b"\xfd7zXZ": "xz", b"7z\xbc\xaf": "a 7z archive"}


def compression(source: Path, where: str) -> str:
    """Return the compression by the file's first bytes."""
    with source.open("rb") as file:
        start = file.read(8)
    for magic, description in _FOREIGN.items():
        if start.startswith(magic):
            raise InvalidInputError(f"is {description}", where=where, hint="unpack it, or compress with gzip or zstd")
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


@contextmanager
def opened(source: Path, where: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed; raise if the stream is damaged."""
    import pyarrow as pa

    name = compression(source, where)
    if not name:
        with source.open("rb") as plain:
            yield plain
        return
    try:
        with pa.input_stream(str(source), compression=name, buffer_size=BUFFER_BYTES) as stream:
            yield stream
    except (pa.ArrowException, OSError, EOFError) as error:
        text = f"the {name} stream is damaged or cut off: {str(error)[:120]}"
        raise InvalidInputError(text, where=where, hint="compress or download it again") from error
