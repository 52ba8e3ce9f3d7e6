"""F1 on annotated public series, beside Otava, MongoDB's E-divisive and PELT.

`python -m bench.history.labels TCPD_FOLDER`

TCPD_FOLDER is a checkout of alan-turing-institute/TCPD (its data are not copied here). F1 as van den Burg and Williams
(2020) define it: margin of five points, precision against all annotators together, recall averaged over them. Beside it
the labelled series of Otava's own tests, and steps of known place.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from bench.history.peers import PEERS, changes_of
from plumbline.history.changepoints import changes

OUT = Path(__file__).resolve().parents[1] / "results" / "history-labels.json"
MARGIN = 5
OTAVA_TESTS = {
    "analysis_test": ([1.02, 0.95, 0.99, 1.00, 1.12, 1.00, 1.01, 0.98, 1.01, 0.96, 0.50, 0.51, 0.48, 0.48, 0.55, 0.50,
                       0.49, 0.51, 0.50, 0.49], [10]),
    "change_point_divisive_test": ([0.3, 2.4, 1.5, -0.9, -0.5, 99.7, 98.3, 99.1, 149.0, 149.7, 149.5, 149.1, 148.8,
                                    150.0], [5, 8]),
    "series_test 1": ([1.02, 0.95, 0.99, 1.00, 1.12, 0.90, 0.50, 0.51, 0.48, 0.48, 0.55], [6]),
    "series_test 2": ([2.02, 2.03, 2.01, 2.04, 1.82, 1.85, 1.79, 1.81, 1.80, 1.76, 1.78], [4]),
}  # fmt: skip
"""Series and change points as apache/otava's tests (Apache-2.0) assert them."""


def matched(truth: set[int], found: set[int]) -> int:
    """Each true point matches at most one found point within the margin."""
    left, count = sorted(found), 0
    for point in sorted(truth):
        near = next((one for one in left if abs(one - point) <= MARGIN), None)
        if near is not None:
            left.remove(near)
            count += 1
    return count


def f1(annotations: list[list[int]], found: list[int]) -> float:
    """Return F1 of the found points against several annotators."""
    ours = {0, *found}
    everyone = {0}.union(*map(set, annotations))
    precision = matched(everyone, ours) / len(ours)
    recall = float(np.mean([matched({0, *one}, ours) / len({0, *one}) for one in annotations]))
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def plumbline(values: np.ndarray) -> list[int]:
    """Return our change points."""
    return [one.index for one in changes(values)]


def tcpd(folder: Path) -> dict[str, tuple[np.ndarray, list[list[int]]]]:
    """Read the one-dimensional annotated series."""
    notes = json.loads((folder / "annotations.json").read_text())
    found = {}
    for path in sorted((folder / "datasets").glob("*/*.json")):
        content = json.loads(path.read_text())
        if content.get("n_dim") == 1 and content["name"] in notes:
            raw = content["series"][0]["raw"]
            values = np.array([np.nan if one is None else float(one) for one in raw])
            values[np.isnan(values)] = np.nanmedian(values)
            found[content["name"]] = (values, list(notes[content["name"]].values()))
    return found


def steps() -> dict[str, tuple[np.ndarray, list[list[int]]]]:
    """Known changes: a year with three steps of 2 to 5 SD, in four noise models."""
    generator = np.random.default_rng(5)
    found = {}
    for number in range(20):
        noise = [generator.normal(size=365), generator.standard_t(3, size=365), generator.lognormal(0, 0.5, 365)][
            number % 3
        ]
        places = sorted(int(place) for place in generator.choice(np.arange(30, 335, 15), 3, replace=False))
        levels = np.zeros(365)
        for place in places:
            levels[place:] += generator.choice([-1, 1]) * generator.uniform(2, 5)
        found[f"steps-{number}"] = (100 + noise + levels, [places])
    return found


def main() -> None:
    """Score, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tcpd", type=Path, nargs="?")
    args = parser.parse_args()
    sets = {"otava-tests": {name: (np.array(series), [places]) for name, (series, places) in OTAVA_TESTS.items()}}
    sets["steps"] = steps()
    if args.tcpd:
        sets["tcpd"] = tcpd(args.tcpd)
    methods = {"plumbline": plumbline, "no change": lambda _: []}
    methods |= {
        name: (lambda values, name=name: changes_of(name, values))
        for name, (_, single, _) in PEERS.items()
        if not single
    }
    found: dict[str, object] = {"command": "python -m bench.history.labels TCPD_FOLDER", "margin": MARGIN}
    for kind, series in sets.items():
        scores = {
            name: {one: round(f1(notes, method(values)), 4) for one, (values, notes) in series.items()}
            for name, method in methods.items()
        }
        means = {name: round(float(np.mean(list(by.values()))), 4) for name, by in scores.items()}
        print(kind, len(series), means, flush=True)
        found[kind] = {"num_series": len(series), "mean_f1": means, "f1": scores}
    OUT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
