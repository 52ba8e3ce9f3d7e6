"""Digests and sketches of a step computed in portable arithmetic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.schema.digest import digest_array, digest_json
from plumbline.schema.evidence import PortableStep
from plumbline.schema.sketch import reduced
from plumbline.train.digests import finite
from plumbline.train.recorder import Stage
from plumbline.train.summaries import Summary

_DIGITS = 16


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
    return digest_array(array)[:_DIGITS]


def joined(digests: Sequence[str | None]) -> str | None:
    """Combine several digests into one; `None` if one is missing."""
    if len(digests) == 1 or None in digests:
        return None if None in digests else digests[0]
    return digest_json(list(digests))[:_DIGITS]


def digested(summaries: Mapping[str, Summary]) -> dict[str, Digested]:
    """Return each tensor's short digest and small count-sketch, from its summary."""
    return {
        name: Digested(each.sha256[:_DIGITS], tuple(map(float, reduced(each.sketch))))
        if each.is_finite
        else Digested(None, None)
        for name, each in summaries.items()
    }


def portable_step(step: int, kept: Mapping[Stage, Mapping[str, Digested]], loss: float) -> PortableStep:
    """Return the digests and sketches of a recorded step."""
    named = {stage: tuple((name, each.digest) for name, each in found.items()) for stage, found in kept.items()}
    stages: tuple[Stage, ...] = ("forward", "gradient", "weight")
    return PortableStep(
        step=step, loss=None if finite(loss) is None else loss.hex(), outputs=named["forward"],
        gradients=named["gradient"], clipped=named["clipped"], weights=named["weight"],
        sketches=tuple(
            (f"{stage} {name}", each.sketch)
            for stage in stages
            for name, each in kept[stage].items()
            if each.sketch is not None
        ),
    )  # fmt: skip
