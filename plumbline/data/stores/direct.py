"""GET requests over persistent connections, faster than the cloud SDKs' pipelines.

An SDK still finds the endpoint and the credentials, and signs. `http.client` is used directly: through urllib3, a
request costs more CPU time, which shows with shards of 1 MiB.
"""

from __future__ import annotations

import base64
import html
import http.client
import re
import ssl
import urllib.request
import weakref
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from plumbline import __version__
from plumbline.data.stores.protocol import StoreUnavailableError
from plumbline.data.stores.service_errors import unsendable
from plumbline.schema.errors import ConfigurationError

_POOL = 64
_MOST_ERROR_BYTES = 64 << 10


class DirectResponse:
    """Response of a GET, with a streamed body."""

    def __init__(self, pool: DirectReads, connection: http.client.HTTPConnection) -> None:
        self._pool = pool
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.read1 = self._response.read1

    def header(self, name: str) -> str:
        """Return a header's value, or ""."""
        return self._response.getheader(name) or ""

    def read(self, size: int) -> bytes:
        """Return the body, at most `size` bytes."""
        return self._response.read(size)

    def error_fields(self, *names: str) -> list[str]:
        """Return the requested fields of an XML error response, and close."""
        try:
            body = self.read(_MOST_ERROR_BYTES).decode(errors="replace")
        except (OSError, http.client.HTTPException):
            body = ""
        finally:
            self.release(at_end=False)
        matches = (re.search(f"<{name}>([^<]{{1,2000}})</{name}>", body) for name in names)
        return [html.unescape(match[1]) if match else "" for match in matches]

    def release(self, *, at_end: bool) -> None:
        """Keep the connection for reuse if the body was read, else close."""
        self._response.close()
        if at_end:
            self._pool.keep(self._connection)
        else:
            self._connection.close()


class DirectReads:
    """Pool of persistent connections to one host, through any configured proxy."""

    def __init__(self, base_url: str, *, connect_seconds: float, read_seconds: float, ca_bundle: str = "") -> None:
        self._base = base_url
        self._timeouts = (connect_seconds, read_seconds)
        self._kept: list[http.client.HTTPConnection] = []
        weakref.finalize(self, _close, self._kept)
        self._proxy = _proxy_of(base_url)
        self._context = _context(ca_bundle) if base_url.startswith("https://") else None

    def get(self, target: str, headers: Mapping[str, str], *, where: str) -> DirectResponse:
        """Send a GET of path and query `target`; return the unread response.

        Raises:
            AccessError: if a header or the target has a character that is not allowed.
            StoreUnavailableError: if the host does not answer.
        """
        given = {"User-Agent": f"plumbline/{__version__}", **headers}
        try:
            return self._send_kept(target, given) or self._send(self._connect(), target, given)
        except (OSError, ValueError, http.client.HTTPException) as error:
            if (refused := unsendable(error, where)) is not None:
                raise refused from error
            raise StoreUnavailableError(f"no answer: {type(error).__name__}", where=where) from error

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Return a connection to the pool after its response was read."""
        if len(self._kept) < _POOL:
            self._kept.append(connection)
        else:
            connection.close()

    def _send_kept(self, target: str, headers: Mapping[str, str]) -> DirectResponse | None:
        """Send on a pooled connection; return `None` if the server closed all."""
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                return None
            try:
                return self._send(connection, target, headers)
            except TimeoutError:
                raise
            except (OSError, http.client.RemoteDisconnected):
                continue

    def _send(self, connection: http.client.HTTPConnection, target: str, headers: Mapping[str, str]) -> DirectResponse:
        if self._proxy and self._context is None:
            # A proxy of plain HTTP needs the whole address.
            target, headers = self._base + target, {**headers, **_proxy_headers(self._proxy)}
        try:
            connection.request("GET", target, headers=dict(headers))
            return DirectResponse(self, connection)
        except BaseException:
            connection.close()
            raise

    def _connect(self) -> http.client.HTTPConnection:
        parts, (connect, read) = urlsplit(self._base), self._timeouts
        near = urlsplit(self._proxy) if self._proxy else parts
        host = near.hostname or ""
        if self._context is None:
            connection = http.client.HTTPConnection(host, near.port, timeout=connect)
        else:
            connection = http.client.HTTPSConnection(host, near.port, timeout=connect, context=self._context)
            if self._proxy:
                connection.set_tunnel(parts.hostname or "", parts.port or 443, _proxy_headers(self._proxy))
        connection.connect()
        connection.sock.settimeout(read)
        return connection


def _close(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


def _context(ca_bundle: str) -> ssl.SSLContext:
    """Return a TLS context that verifies certificates, with certifi's by default."""
    import certifi

    authorities = ca_bundle or certifi.where()
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise ConfigurationError("is not a file of certificate authorities", where=authorities) from error


def _proxy_of(url: str) -> str:
    """Return the proxy URL for `url`, or ""; raise `ConfigurationError` if unsupported."""
    parts = urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme, "")
    if not proxy or urllib.request.proxy_bypass(parts.netloc):
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith("http://"):
        key = f"{parts.scheme.upper()}_PROXY"
        raise ConfigurationError("only http:// proxies are supported", where="environment", key=key)
    return proxy


def _proxy_headers(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
