"""Keys of objects and files, and etags, in the form that all backends share."""

from __future__ import annotations

from plumbline.errors import InvalidInputError
from plumbline.schema.store_url import safe_key

__all__ = ["checked_key", "is_folder_marker", "joined", "plain_etag", "quoted_etag"]


def checked_key(key: str, where: str) -> str:
    """Return `key` if it is a plain relative path; raise `InvalidInputError` if not."""
    try:
        return safe_key(key)
    except ValueError as error:
        raise InvalidInputError(str(error), where=where, key="key") from error


def is_folder_marker(key: str, size: int) -> bool:
    """Return whether an object stands for a folder: a console's empty `reviews/`, or Hadoop's `reviews_$folder$`."""
    return not key or key.endswith("/") or (not size and key.endswith("_$folder$"))


def joined(prefix: str, key: str) -> str:
    """Return the name of `key` in its bucket."""
    return f"{prefix}/{key}" if prefix else key


def plain_etag(etag: str) -> str:
    """Return an etag without quotes, as services differ in quoting."""
    return etag.strip('"')


def quoted_etag(etag: str) -> str:
    """Return an etag with quotes, as in a header."""
    return f'"{plain_etag(etag)}"'
