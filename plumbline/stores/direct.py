"""Direct GETs over pooled connections, without the SDKs' costly pipelines.

An SDK still finds the endpoint and the credentials. Behind a proxy the SDK's own pipeline is used, which supports
proxies.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from plumbline.stores.base import StoreUnavailableError

__all__ = ["DirectReads", "is_proxied"]

_POOL = 64


def is_proxied(url: str) -> bool:
    """Return whether `url` is reached through a proxy."""
    parts = urlsplit(url)
    return parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.netloc)


class DirectReads:
    """Pooled connections to one host."""

    def __init__(self, base_url: str, *, connect_seconds: float, read_seconds: float, ca_bundle: str = "") -> None:
        import urllib3

        options: dict[str, Any] = {
            "maxsize": _POOL, "retries": False,
            "timeout": urllib3.Timeout(connect=connect_seconds, read=read_seconds),
        }  # fmt: skip
        if base_url.startswith("https://"):
            import certifi

            options["ca_certs"] = ca_bundle or certifi.where()
        self._pool = urllib3.connection_from_url(base_url, **options)

    def get(self, target: str, headers: Mapping[str, str], *, where: str) -> Any:
        """Send a GET of `target`; return the unread urllib3 response."""
        from urllib3.exceptions import HTTPError

        try:
            return self._pool.urlopen(
                "GET",
                target,
                headers=headers,
                preload_content=False,
                redirect=False,
                retries=False,
                decode_content=False,
            )
        except (HTTPError, OSError) as error:
            raise StoreUnavailableError(f"no answer: {type(error).__name__}", where=where) from error
