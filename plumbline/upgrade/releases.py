"""Search for the release that brought a culprit's effect. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from packaging.version import InvalidVersion, Version

from plumbline.upgrade.answer import ReleaseRange
from plumbline.upgrade.changes import PackageChange
from plumbline.upgrade.locks.model import Pin
from plumbline.upgrade.search import TrialAnswer


def has_releases(change: PackageChange) -> bool:
    """Return whether both pins are releases of an index."""
    pins = (change.current, change.candidate)
    return all(pin is not None and pin.version and not pin.url for pin in pins)


def pins_between(change: PackageChange, versions: Iterable[str]) -> tuple[Pin, ...]:
    """Return the releases strictly between both pins.

    They are in the direction of the change.
    """
    if change.current is None or change.candidate is None:
        return ()
    try:
        current, candidate = Version(change.current.version), Version(change.candidate.version)
    except InvalidVersion:
        return ()
    low, high = sorted((current, candidate))
    between = sorted({version for version in _parsed(versions) if low < version < high}, reverse=candidate < current)
    # An index lists no local labels: `1.0` is the release of an installed `1.0+cpu`.
    return tuple(
        Pin(name=change.package, version=str(version))
        for version in between
        if str(version) not in (low.public, high.public)
    )


def _parsed(versions: Iterable[str]) -> Iterable[Version]:
    for text in versions:
        try:
            yield Version(text)
        except InvalidVersion:
            continue


def search_releases(
    change: PackageChange, releases: Sequence[Pin], ask: Callable[[Pin], TrialAnswer | None]
) -> ReleaseRange | None:
    """Return the closest pair of releases around the effect.

    The earlier one does not have the effect, the later one has it. The current release is known not to have the effect,
    the candidate's to have it. `ask` returns "unknown" for a release that cannot be tried, which is skipped, and `None`
    once no more trials are allowed. An effect that was reverted in between has several such pairs: one of them is
    found.
    """
    if not releases or change.current is None or change.candidate is None:
        return None
    low, high = -1, len(releases)
    skipped: set[int] = set()
    num_tried = 0
    while left := [place for place in range(low + 1, high) if place not in skipped]:
        place = left[len(left) // 2]
        answer = ask(releases[place])
        if answer is None:
            break
        num_tried += 1
        if answer == "unknown":
            skipped.add(place)
        elif answer == "fails":
            high = place
        else:
            low = place
    return ReleaseRange(
        without=change.current.version if low < 0 else releases[low].version,
        with_effect=change.candidate.version if high == len(releases) else releases[high].version,
        unknown=tuple(releases[place].version for place in range(low + 1, high)),
        num_tried=num_tried,
    )


def range_sentence(package: str, releases: ReleaseRange) -> str:
    """Describe the range of releases in a sentence."""
    line = f"{package} {releases.with_effect} has this effect, {releases.without} does not"
    if not releases.unknown:
        return f"of its releases, {line}"
    names = ", ".join(releases.unknown[:3]) + (
        f" and {len(releases.unknown) - 3} more" if len(releases.unknown) > 3 else ""
    )
    return f"of its releases, {line}, and {names} could not be tried"
