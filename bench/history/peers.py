"""The other detectors, each as a function from a series to the indices where it reports a loss."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_CALIBRATION = 20
_NEAR = 5


def flat(values: np.ndarray) -> list[int]:
    """A drop of 5% against the median of the first twenty nights."""
    limit = 0.95 * np.median(values[:_CALIBRATION])
    return [index for index in range(_CALIBRATION, len(values)) if values[index] < limit]


def three_sigma(values: np.ndarray) -> list[int]:
    """Below the mean of the first twenty nights by three of their standard deviations."""
    first = values[:_CALIBRATION]
    limit = first.mean() - 3 * first.std(ddof=1)
    return [index for index in range(_CALIBRATION, len(values)) if values[index] < limit]


def otava(values: np.ndarray) -> list[int]:
    """Return the change points of apache-otava with its defaults."""
    from otava.analysis import compute_change_points

    return [int(one.index) for one in compute_change_points(list(values), window_len=50, max_pvalue=0.001)[0]]


def mongodb(values: np.ndarray) -> list[int]:
    """Return the change points of MongoDB's E-divisive with its defaults."""
    from signal_processing_algorithms.energy_statistics.energy_statistics import e_divisive

    return [int(index) for index in e_divisive(values, pvalue=0.05, permutations=100)]


def pelt(values: np.ndarray) -> list[int]:
    """`ruptures` PELT, least squares, penalty 3 sigma² log n, sigma from the first differences."""
    import ruptures

    if len(values) < 6:
        return []
    sigma = 1.4826 * np.median(np.abs(np.diff(values))) / np.sqrt(2)
    penalty = 3 * max(sigma, 1e-9) ** 2 * np.log(len(values))
    return [
        int(index) for index in ruptures.KernelCPD(kernel="linear", min_size=2).fit(values).predict(pen=penalty)[:-1]
    ]


def pelt_whitened(values: np.ndarray) -> list[int]:
    """PELT on x(t) - rho x(t-1), with rho of the residuals about the segments, until both agree."""
    rho, found = 0.0, pelt(values)
    for _ in range(4):
        levels = np.concatenate([np.full(len(part), np.median(part)) for part in np.split(values, found)])
        off = values - levels
        rho_now = float(np.clip(off[1:] @ off[:-1] / max(off @ off, 1e-300), 0.0, 0.95))
        if abs(rho_now - rho) < 0.01:
            break
        rho = rho_now
        found = [index + 1 for index in pelt((values[1:] - rho * values[:-1]) / (1 - rho))]
    return found


PEERS: dict[str, tuple[Callable[[np.ndarray], list[int]], bool, int]] = {
    "flat 5%": (flat, True, 1),
    "3 sigma": (three_sigma, True, 1),
    "apache-otava 0.8.0": (otava, False, 1),
    "MongoDB E-divisive 2.1.6": (mongodb, False, 7),
    "ruptures PELT 1.1.10": (pelt, False, 1),
    "PELT, whitened": (pelt_whitened, False, 1),
}
"""Name: the detector, whether it reports single nights instead of changes, and every how many nights it is run."""


def losses_of(values: np.ndarray, indices: list[int]) -> list[int]:
    """Keep the changes after which the level is lower."""
    edges = [0, *indices, len(values)]
    return [
        index
        for place, index in enumerate(indices)
        if np.median(values[index : edges[place + 2]]) < np.median(values[edges[place] : index])
    ]


def alarms(name: str, values: np.ndarray, begin: int, *, stop_at: int | None = None) -> list[int]:
    """Return the nights on which a detector, run night after night, reports a new loss.

    A change within five nights of one reported before is the same. With `stop_at`, only losses dated near it or later
    count, and the first one ends the run.
    """
    detector, single, stride = PEERS[name]
    if single:
        nights = detector(values)
        fresh = [night for night in nights if night >= begin and night - 1 not in nights]
        return fresh if stop_at is None else [night for night in nights if night >= stop_at][:1]
    if stop_at is not None:
        stride = 1
    known: list[int] = []
    found: list[int] = []
    for night in range(begin, len(values), stride):
        for index in losses_of(values[: night + 1], detector(values[: night + 1])):
            if all(abs(index - old) > _NEAR for old in known):
                known.append(index)
                if stop_at is None or index >= stop_at - _NEAR:
                    found.append(night)
        if found and stop_at is not None:
            break
    return found


def changes_of(name: str, values: np.ndarray) -> list[int]:
    """Return all changes of a whole series, for labels."""
    return PEERS[name][0](values)
