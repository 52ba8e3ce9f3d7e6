"""Windows: digests and sketches of a step computed in fp64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.schema.digest import SHORT_DIGITS, digest_array, digest_json
from plumbline.schema.evidence import PortableEvidence, PortableWindow, RankDifference
from plumbline.schema.portable_parts import common, other_formats, window_parts
from plumbline.schema.sketch import reduced
from plumbline.train.digests import finite
from plumbline.train.ranks import Ranks
from plumbline.train.watch.summaries import Summary


class Digested(NamedTuple):
    """Short digest and small sketch of a tensor; `None` if not finite."""

    digest: str | None
    sketch: tuple[float, ...] | None


def short_digest(array: NDArray[Any]) -> str | None:
    """Return a short array digest; `None` if not finite."""
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            return None
        array = array + 0.0
    return digest_array(array)[:SHORT_DIGITS]


def joined(digests: Sequence[str | None]) -> str | None:
    """Combine several digests into one; `None` if one is missing."""
    if len(digests) == 1 or None in digests:
        return None if None in digests else digests[0]
    return digest_json(list(digests))[:SHORT_DIGITS]


def digested(summary: Summary) -> Digested:
    """Return a tensor's short digest and small count-sketch."""
    if not summary.is_finite:
        return Digested(None, None)
    return Digested(summary.sha256[:SHORT_DIGITS], tuple(map(float, reduced(summary.sketch))))


def portable_window(step: int, kept: Mapping[Any, Mapping[str, Digested]], loss: float) -> PortableWindow:
    """Return the window of a recorded step, by stage and name."""
    named = {stage: tuple((name, each.digest) for name, each in found.items()) for stage, found in kept.items()}
    return PortableWindow(
        step=step, loss=None if finite(loss) is None else loss.hex(), outputs=named["forward"],
        gradients=named["gradient"], clipped=named["clipped"], weights=named["optimizer"],
        evaluated=named.get("evaluated", ()),
        sketches=tuple(
            (f"{stage} {name}", each.sketch)
            for stage, found in kept.items()
            for name, each in found.items()
            if each.sketch is not None
        ),
    )  # fmt: skip


def parted_processes(ranks: Ranks, own: PortableEvidence) -> Iterator[RankDifference]:
    """Yield the first difference of each process from most others."""
    if len(set(ranks.gather(digest_json(own.to_json())))) == 1:
        return
    sides = [PortableEvidence.model_validate(each) for each in ranks.gather(own.to_json())]
    alike: list[list[int]] = []
    for rank, side in enumerate(sides):
        group = next((each for each in alike if _first_difference(rank, sides[each[0]], side) is None), None)
        if group is None:
            alike.append(group := [])
        group.append(rank)
    usual = max(alike, key=len)
    for rank, side in enumerate(sides):
        if rank not in usual and (found := _first_difference(rank, sides[usual[0]], side)) is not None:
            yield found


def _first_difference(rank: int, known: PortableEvidence, other: PortableEvidence) -> RankDifference | None:
    """Return where a process first differs; a limit of time may end its windows earlier."""
    for windows in common(known, other):
        for stage, name in window_parts(*windows):
            formats = other_formats(*windows, stage, name)
            return RankDifference(rank=rank, at=windows[0].step, stage=stage, name=name, formats=formats)
    return None
