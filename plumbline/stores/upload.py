"""Body of an upload, with its media type and MD5.

The media type makes a browser show a page instead of downloading it. The MD5 makes the service refuse a body that was
damaged in transit; a bucket with Object Lock requires it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from pathlib import Path

from plumbline.errors import InvalidInputError, UnavailableError

__all__ = ["Body", "content_md5", "media_type", "opened"]

Body = BufferedReader | BytesIO

_MISSING = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".xml": "application/xml",
}


@contextmanager
def opened(data: bytes | Path) -> Iterator[tuple[Body, int]]:
    """Open the bytes to upload; yield the body and its size.

    Errors of a local file inside the block become `InvalidInputError` if it does not exist, else `UnavailableError`.
    """
    if not isinstance(data, Path):
        yield BytesIO(data), len(data)
        return
    try:
        with data.open("rb") as file:
            yield file, os.fstat(file.fileno()).st_size
    except OSError as error:
        if error.errno in _MISSING:
            raise InvalidInputError("no such file", where=str(data)) from error
        raise UnavailableError(f"the file cannot be read: {error.strerror}", where=str(data)) from error


def media_type(key: str) -> str:
    """Return the media type of an object by its key's ending."""
    name = key.rpartition("/")[2]
    return _TYPES.get(name[name.rfind(".") :].lower() if "." in name else "", "application/octet-stream")


def content_md5(body: Body) -> str:
    """Return the Base64 MD5 of a body, rewound to its start."""
    body.seek(0)
    digest = hashlib.file_digest(body, lambda: hashlib.md5(usedforsecurity=False)).digest()
    body.seek(0)
    return base64.b64encode(digest).decode()
