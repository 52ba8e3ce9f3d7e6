"""Keys below a store's URL, and etags, in the one form that all backends share."""

from __future__ import annotations

from plumbline.errors import InvalidInputError
from plumbline.schema.key import safe_key

__all__ = ["checked_key", "joined", "plain_etag", "quoted_etag"]


def checked_key(key: str, where: str) -> str:
    """`key` if it is a plain relative path; else `InvalidInputError`."""
    try:
        return safe_key(key)
    except ValueError as error:
        raise InvalidInputError(str(error), where=where, key="key") from error


def joined(prefix: str, key: str) -> str:
    """The name of `key` in its bucket."""
    return f"{prefix}/{key}" if prefix else key


def plain_etag(etag: str) -> str:
    """An etag without its quotes: services give it with them or without."""
    return etag.strip('"')


def quoted_etag(etag: str) -> str:
    """An etag as a header carries it."""
    return f'"{plain_etag(etag)}"'
