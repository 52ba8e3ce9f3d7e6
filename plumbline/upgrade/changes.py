"""Packages that two locks pin differently."""

from __future__ import annotations

from collections.abc import Mapping

from plumbline.schema.base import Model
from plumbline.upgrade.locks.model import Pin

__all__ = ["PackageChange", "changes_between"]


class PackageChange(Model):
    """One package that two locks pin differently.

    A side is `None` if that lock does not contain the package.
    """

    package: str
    current: Pin | None
    candidate: Pin | None

    def __str__(self) -> str:
        return f"{self.package} {_shown(self.current)} → {_shown(self.candidate)}"


def _shown(pin: Pin | None) -> str:
    return "absent" if pin is None else pin.shown


def changes_between(current: Mapping[str, Pin], candidate: Mapping[str, Pin]) -> tuple[PackageChange, ...]:
    """Return the changed, added and removed packages, by name.

    A package has changed if its version or source differs.
    """
    changes = []
    for package in sorted({*current, *candidate}):
        left, right = current.get(package), candidate.get(package)
        if left is None or right is None or left.identity != right.identity:
            changes.append(PackageChange(package=package, current=left, candidate=right))
    return tuple(changes)
