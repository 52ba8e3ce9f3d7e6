"""Attributes of an upload: media type and MD5.

The media type makes a browser show a page instead of downloading it. The MD5 makes the service refuse a body that was
damaged in transit; a bucket with Object Lock requires it.
"""

from __future__ import annotations

import base64
import hashlib
from io import BufferedReader, BytesIO

__all__ = ["Body", "content_md5", "media_type"]

Body = BufferedReader | BytesIO

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
    ".md": "text/markdown; charset=utf-8",
    ".svg": "image/svg+xml",
    ".css": "text/css; charset=utf-8",
    ".xml": "application/xml",
}


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
