"""Download from given web addresses: HTTPS only, redirects included."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urljoin, urlsplit

import httpx

from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.tasks.prefect_client.api import make_client

_SECONDS = 30.0
_REDIRECTS = 5
_LAST_32_BITS = tuple(map(ipaddress.IPv6Network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48")))
"""Networks whose last 32 bits are an IPv4 address: IPv4-compatible, and NAT64 (RFC 4291, 6052, 8215)."""


def download(url: str, max_bytes: int, *, key: str) -> bytes:
    """Download the content of a public `https://` address without credentials.

    A redirect may lead to a public address by HTTPS only. The named address may be private, such as a company's
    server. A host that changes its address between check and request has no certificate for its name there.
    """
    place = url
    try:
        with make_client(timeout=_SECONDS, follow_redirects=False) as client:
            for _ in range(_REDIRECTS + 1):
                with client.stream("GET", place) as answer:
                    if not answer.has_redirect_location:
                        return _content(answer, url, max_bytes, key)
                    place = _next_place(place, answer.headers["Location"], url, key)
    except httpx.HTTPError as error:
        # By its kind: the text may name the address that a redirect signed.
        raise UnavailableError(f"cannot be read: {type(error).__name__}", where=url) from error
    raise ConfigurationError(f"redirects more than {_REDIRECTS} times", where=url, key=key)


def _content(answer: httpx.Response, url: str, max_bytes: int, key: str) -> bytes:
    if answer.status_code != httpx.codes.OK:
        hint = "the address has to work without a login"
        raise ConfigurationError(f"answered HTTP {answer.status_code}", where=url, key=key, hint=hint)
    data = bytearray()
    for piece in answer.iter_bytes():
        data += piece
        if len(data) > max_bytes:
            hint = "check that the address is that of a lock"
            raise ConfigurationError(f"larger than {max_bytes >> 20} MiB", where=url, key=key, hint=hint)
    return bytes(data)


def _next_place(place: str, location: str, url: str, key: str) -> str:
    """Return a redirect's address; raise `ConfigurationError` unless public HTTPS."""
    hint = "name the final address"
    try:
        following = urljoin(place, location)
        parts = urlsplit(following)
        host, port = parts.hostname or "", parts.port or 443
    except ValueError as error:
        raise ConfigurationError(
            "redirects to an address that cannot be read", where=url, key=key, hint=hint
        ) from error
    if parts.scheme != "https" or not host or "@" in parts.netloc:
        what = "redirects to an address that is not https://, or contains a credential"
        raise ConfigurationError(what, where=url, key=key, hint=hint)
    if not _is_public(host, port):
        raise ConfigurationError("redirects to a private address", where=url, key=key, hint=hint)
    return following


def _is_public(host: str, port: int) -> bool:
    """Return whether all of a host's IP addresses are public. An unknown name fails in the request."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True
    return all(_is_global(ipaddress.ip_address(str(address[0]).partition("%")[0])) for *_, address in found)


def _is_global(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is public, and the IPv4 address to which a network would translate it."""
    if isinstance(address, ipaddress.IPv4Address):
        return address.is_global
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None,))[-1]
    if any(address in network for network in _LAST_32_BITS):
        inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return inner.is_global if inner is not None else address.is_global
