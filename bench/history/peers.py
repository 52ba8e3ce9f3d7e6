"""A peer's detector, run night after night on the engine's series."""

from __future__ import annotations

import numpy as np

PEER = "apache-otava 0.8.0"
_NEAR = 5


def _changes(values: np.ndarray) -> list[int]:
    """Return the change points of apache-otava with its defaults."""
    from otava.analysis import compute_change_points

    return [int(point.index) for point in compute_change_points(list(values), window_len=50, max_pvalue=0.001)[0]]


def losses_of(values: np.ndarray, indices: list[int]) -> list[int]:
    """Keep the changes after which the level is lower."""
    edges = [0, *indices, len(values)]
    return [
        index
        for place, index in enumerate(indices)
        if np.median(values[index : edges[place + 2]]) < np.median(values[edges[place] : index])
    ]


def alarms(values: np.ndarray, begin: int, *, stop_at: int | None = None) -> list[int]:
    """Return the nights on which the detector reports a new loss.

    A change within five nights of one reported before is the same. With `stop_at`, only losses dated near it or later
    count, and the first one ends the run.
    """
    known: list[int] = []
    found: list[int] = []
    for night in range(begin, len(values)):
        for index in losses_of(values[: night + 1], _changes(values[: night + 1])):
            if all(abs(index - old) > _NEAR for old in known):
                known.append(index)
                if stop_at is None or index >= stop_at - _NEAR:
                    found.append(night)
        if found and stop_at is not None:
            break
    return found
