"""Byte streams of users' files: decompression and text encodings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from plumbline.schema.delimited import decoded
from plumbline.schema.errors import InvalidInputError

BUFFER_BYTES = 1 << 20
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2", b"\x04\x22\x4d\x18": "lz4"}
_UNPACK = "unpack it, or compress with gzip or zstd"
_FOREIGN = {
    b"PK\x03\x04": ("a ZIP archive", _UNPACK), b"\xfd7zXZ": ("xz", _UNPACK), b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
    b"version https://git-lfs": ("a pointer of Git LFS", "fetch the file with `git lfs pull`"),
}  # fmt: skip


def compression(source: Path, where: str) -> str:
    """Return the compression type by the file's first bytes."""
    with source.open("rb") as file:
        start = file.read(24)
    for magic, (description, hint) in _FOREIGN.items():
        if start.startswith(magic):
            raise InvalidInputError(f"is {description}", where=where, hint=hint)
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")


@contextmanager
def opened(source: Path, where: str) -> Iterator[BinaryIO]:
    """Open a file for reading, decompressed; raise if damaged."""
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


def read_text(source: Path, where: str, max_bytes: int) -> str:
    """Return a file's text, decompressed and without byte order mark."""
    with opened(source, where) as raw:
        data = raw.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise InvalidInputError(f"more than {max_bytes >> 20} MiB", where=where)
    try:
        return decoded(data)
    except UnicodeDecodeError as error:
        raise InvalidInputError("is not UTF-8 text", where=where, hint="save it as UTF-8") from error
