"""Group of virtual machines of a cloud: read its size, and set it."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast
from urllib.parse import urlsplit

from plumbline.schema.suite import Suite

_BACKENDS = {"aws": "AutoScalingGroup", "azure": "ScaleSet", "gcp": "ManagedInstanceGroup"}


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
    backend = getattr(import_module(f"plumbline.machines.{parts.scheme}"), _BACKENDS[parts.scheme])
    return cast("MachineGroup", backend(url, *[parts.netloc, *parts.path.strip("/").split("/")]))


def wanted_sizes(suite: Suite) -> dict[str, int]:
    """Return the size of each group during a round: one machine for each training at once."""
    sizes: dict[str, int] = {}
    for platform in suite.platforms.values():
        if platform.machines:
            sizes[platform.machines] = sizes.get(platform.machines, 0) + platform.concurrency
    return sizes
