"""Lock files as pip writes them: one `name==version` a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plumbline.errors import ConfigurationError

__all__ = ["PackageChange", "changes_between", "normalized", "read_lock"]

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(\[[^\]]*\])?\s*==\s*(?P<version>[^\s;\\#]+)")


@dataclass(frozen=True, slots=True, order=True)
class PackageChange:
    """One package that two locks pin differently; `None` where a lock has none of it."""

    package: str
    current: str | None
    candidate: str | None

    def __str__(self) -> str:
        return f"{self.package} {self.current or 'absent'} → {self.candidate or 'absent'}"


def normalized(name: str) -> str:
    """A package's name as PEP 503 compares it: locks and installed packages each write it in a way of their own."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(path: Path) -> dict[str, str]:
    """Package to version; `ConfigurationError` names the line that pins nothing."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot be read: {error}", where=str(path), hint="name a lock file") from error
    pins: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith(("#", "--")):
            continue
        pin = _PIN.match(text)
        if pin is None:
            raise ConfigurationError(
                f"line {number} pins no version: {text[:60]!r}", where=str(path), hint="write NAME==VERSION"
            )
        pins[normalized(pin["name"])] = pin["version"]
    if not pins:
        raise ConfigurationError("pins nothing", where=str(path), hint="name a lock file")
    return pins


def changes_between(current: Mapping[str, str], candidate: Mapping[str, str]) -> tuple[PackageChange, ...]:
    """What differs, by package."""
    return tuple(
        PackageChange(package, current.get(package), candidate.get(package))
        for package in sorted({*current, *candidate})
        if current.get(package) != candidate.get(package)
    )
