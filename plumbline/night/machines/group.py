"""Interface of a cloud's virtual machine group: read and set its size."""

from __future__ import annotations

from http import HTTPStatus
from importlib import import_module
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from plumbline.schema.errors import AccessError, ConfigurationError, UnavailableError
from plumbline.schema.suite import Suite

_BACKENDS = {"aws": "AutoScalingGroup", "azure": "ScaleSet", "gcp": "ManagedInstanceGroup"}

_SECONDS = (10.0, 60.0)
_MAX_TEXT = 300


class MachineGroup(Protocol):
    """Group of identical virtual machines with a requested size.

    Raises `AccessError`, `ConfigurationError` for a group that does not exist or a size that it does not allow, and
    `UnavailableError`.
    """

    def size(self) -> int:
        """Return the requested number of machines."""

    def resize(self, count: int) -> None:
        """Request this number of machines, without waiting. Idempotent."""


def open_group(url: str) -> MachineGroup:
    """Open the group at a URL: `aws://REGION/NAME`, `azure://SUBSCRIPTION/GROUP/NAME`, `gcp://PROJECT/ZONE/NAME`."""
    parts = urlsplit(url)
    backend = getattr(import_module(f"plumbline.night.machines.{parts.scheme}"), _BACKENDS[parts.scheme])
    return cast("MachineGroup", backend(url, *[parts.netloc, *parts.path.strip("/").split("/")]))


def wanted_sizes(suite: Suite) -> dict[str, int]:
    """Return each group's size during a round: one machine per concurrent training."""
    sizes: dict[str, int] = {}
    for platform in suite.platforms.values():
        if platform.machines:
            sizes[platform.machines] = sizes.get(platform.machines, 0) + platform.concurrency
    return sizes


def ask(session: Any, method: str, address: str, *, where: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send a request by a `requests` session; return the response's JSON object."""
    from requests.exceptions import RequestException

    try:
        answer = session.request(method, address, json=body, timeout=_SECONDS)
    except RequestException as error:
        raise UnavailableError(f"no answer: {type(error).__name__}", where=where) from error
    text = f"HTTP {answer.status_code}: {' '.join(answer.text.split())[:_MAX_TEXT]}"
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        raise AccessError(f"refused: {text}", where=where, hint="docs/how-to/machines-for-a-round.md lists the rights")
    if answer.status_code == HTTPStatus.NOT_FOUND:
        raise ConfigurationError("does not exist", where=where, hint="check the names in the suite's `machines`")
    if HTTPStatus.BAD_REQUEST <= answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        raise ConfigurationError(text, where=where, hint="check the group's maximum size and the quota")
    if not answer.ok:
        raise UnavailableError(text, where=where)
    found = answer.json() if answer.content else {}
    return found if isinstance(found, dict) else {}
