"""Group of virtual machines of a cloud: read its size, and set it."""

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
    """Machines of one template, of which the cloud keeps as many as were asked for.

    Raises `AccessError`, `ConfigurationError` for a group that does not exist or a size that it does not allow, and
    `UnavailableError`.
    """

    def size(self) -> int:
        """Return the number of machines that is asked for."""

    def resize(self, count: int) -> None:
        """Ask for so many machines, without waiting for them. Idempotent."""


def open_group(url: str) -> MachineGroup:
    """Return the group of a URL: `aws://REGION/NAME`, `azure://SUBSCRIPTION/GROUP/NAME`, `gcp://PROJECT/ZONE/NAME`."""
    parts = urlsplit(url)
    backend = getattr(import_module(f"plumbline.night.machines.{parts.scheme}"), _BACKENDS[parts.scheme])
    return cast("MachineGroup", backend(url, *[parts.netloc, *parts.path.strip("/").split("/")]))


def wanted_sizes(suite: Suite) -> dict[str, int]:
    """Return the size of each group during a round: one machine for each training at once."""
    sizes: dict[str, int] = {}
    for platform in suite.platforms.values():
        if platform.machines:
            sizes[platform.machines] = sizes.get(platform.machines, 0) + platform.concurrency
    return sizes


def ask(session: Any, method: str, address: str, *, where: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one request by a `requests` session. Return the answer's JSON object."""
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
