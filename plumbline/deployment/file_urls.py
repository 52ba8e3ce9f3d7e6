"""Absolute `file://` URLs, as workers run flows in temporary folders."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from plumbline.schema.suite import Suite


def with_absolute_urls(suite: Suite, folder: Path) -> Suite:
    """Return the suite with relative `file://` URLs resolved against `folder`."""
    platforms = {
        name: platform.replace(data=_absolute(platform.data, folder), outbox=_absolute(platform.outbox, folder))
        for name, platform in suite.platforms.items()
    }
    return suite.model_copy(update={"store": _absolute(suite.store, folder), "platforms": platforms})


def _absolute(url: str, folder: Path) -> str:
    parts = urlsplit(url)
    if parts.scheme != "file":
        return url
    return f"file://{(folder / (parts.netloc + parts.path)).resolve()}"
