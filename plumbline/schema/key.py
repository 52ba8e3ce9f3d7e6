"""Keys of objects and files: relative paths inside their folder."""

from __future__ import annotations

import posixpath

__all__ = ["safe_key"]


_MAX_NAME_BYTES = 255
"""Maximum length of a file's name on common file systems."""


def safe_key(key: str) -> str:
    """Return `key` if it is a safe relative path; raise `ValueError` if not."""
    bad = (
        not key
        or len(key) > 512
        or any(len(name.encode()) > _MAX_NAME_BYTES for name in key.split("/"))
        or key.startswith("/")
        or "\\" in key
        or ":" in key
        or any(ord(char) < 32 or ord(char) == 127 for char in key)
        or posixpath.normpath(key) != key
        or key.split("/", 1)[0] == ".."
        or key == "."
    )
    if bad:
        raise ValueError(f"{key[:80]!r} is not a plain relative path")
    return key
