"""cgroups of this process: CPU quotas, memory limits, throttling and kills."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SELF = Path("/proc/self")
_UNLIMITED = 2.0**60
"""Version 1 states the largest number of pages."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """Tightest CPU quota, and throttled time; `None` if unknown."""

    cores: float | None = None
    """`None` without a quota, too."""
    throttled_seconds: float | None = None
    """Of the group that was held back longest, summed over its processors."""


def quota_use(process: Path = _SELF) -> QuotaUse:
    """Return the CPU quota of this process's cgroups, including parents.

    A quota of any of these groups holds the process back. `process` is a folder of `/proc`.
    """
    folders = list(_groups(process, "cpu"))
    if not folders:
        return QuotaUse()
    quotas = [cores for folder in folders if (cores := _quota(folder)) is not None]
    throttled = [seconds for folder in folders if (seconds := _throttled(folder)) is not None]
    return QuotaUse(min(quotas, default=None), max(throttled, default=None))


def memory_kills(process: Path = _SELF) -> int | None:
    """Return how many processes the kernel killed for memory in this cgroup. `None` if unknown.

    The kernel counts a process at its own group, whichever limit was reached: the group's, one above, or the machine's.
    """
    for folder in _groups(process, "memory"):
        kills = [_number(folder / name, "oom_kill") for name in ("memory.events", "memory.oom_control")]
        return next((int(number) for number in kills if number is not None), None)
    return None


def memory_limit(process: Path = _SELF) -> int | None:
    """Return the tightest cgroup memory limit in bytes, or `None`."""
    files = [folder / name for folder in _groups(process, "memory") for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(number) for file in files if (number := _number(file)) is not None and number < _UNLIMITED]
    return min(limits, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path, key: str = "") -> float | None:
    """Return the number after `key` in a file, or its first number."""
    rows = (line.split() for line in _text(path).splitlines())
    fields = next((row[1:] if key else row for row in rows if row and (not key or row[0] == key)), [])
    try:
        return float(fields[0])
    except (IndexError, ValueError):
        return None


def _groups(process: Path, controller: str) -> Iterator[Path]:
    """Yield the cgroup folders with a controller, such as `cpu`, innermost first."""
    rows = [line.split(":", 2) for line in _text(process / "cgroup").splitlines()]
    paths = {name: row[2] for row in rows if len(row) == 3 for name in row[1].split(",")}
    version = "cgroup" if controller in paths else "cgroup2"
    path = paths.get(controller if version == "cgroup" else "", "")
    for root, mount in _mounts(process, version, controller) if path else ():
        # In a container the mount shows only a part of the tree, and its root is the container's group.
        below = path if root == "/" else path.removeprefix(root)
        is_below = root in ("/", path) or path.startswith(f"{root}/")
        folder = mount / below.strip("/")
        if not is_below or ".." in folder.parts or not folder.is_dir():
            continue
        yield folder
        while folder != mount:
            folder = folder.parent
            yield folder
        return


def _mounts(process: Path, version: str, controller: str) -> Iterator[tuple[str, Path]]:
    """Yield (root, mount point) of each mounted cgroup hierarchy with the controller."""
    for line in _text(process / "mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        kind, _, options = [*rest.split(), "", "", ""][:3]
        words = fields.split()
        if kind == version and len(words) > 4 and (version == "cgroup2" or controller in options.split(",")):
            yield words[3], Path(words[4].replace(r"\040", " "))


def _quota(folder: Path) -> float | None:
    """Return a cgroup's CPU quota in cores, or `None`."""
    limit = _text(folder / "cpu.max").split()
    if not limit:
        microseconds, period = (_number(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    elif limit[0] == "max":
        return None
    else:
        microseconds, period = (float(word) for word in limit[:2])
    return microseconds / period if microseconds and period and microseconds > 0 else None


def _throttled(folder: Path) -> float | None:
    """Return the seconds that a cgroup's quota throttled its processes."""
    microseconds = _number(folder / "cpu.stat", "throttled_usec")
    if microseconds is not None:
        return microseconds / 1e6
    nanoseconds = _number(folder / "cpu.stat", "throttled_time")
    return None if nanoseconds is None else nanoseconds / 1e9
