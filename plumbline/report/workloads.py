"""Report section on one workload: equality, charts, step times. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart
from plumbline.report.curves import Curves, curves
from plumbline.report.sentences import clean, listed, some_of
from plumbline.report.taps_chart import taps_chart
from plumbline.report.timing import Bars, step_bars
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.escape import first_of

_MAX_POINTS = 240


def loss_charts(
    records: Mapping[str, LoadedRecord], order: Sequence[str], marked: frozenset[str] = frozenset()
) -> tuple[Chart, ...]:
    """Draw each platform's loss curves, of probe and learning run."""
    probes = {
        name: list(record.record.evidence.probe.losses)
        for name, record in records.items()
        if record.record.evidence.probe
    }
    learned = {
        name: list(record.record.evidence.learn.losses)
        for name, record in records.items()
        if record.record.evidence.learn
    }
    same = len({tuple(line) for line in probes.values()}) == 1 and len(probes) > 1
    note = (
        "Equal on all platforms, to the last bit: one line hides the others."
        if same
        else "As measured on each platform."
    )
    width = max(1, math.ceil(max((len(line) for line in learned.values()), default=0) / _MAX_POINTS))
    means = f"Each point is the mean of {width} steps." if width > 1 else "As measured on each platform."
    charts = [
        curves(Curves("Loss of the probe", note, probes, "loss", "step", order, marked=marked)),
        curves(Curves(
            "Loss while learning", means, {name: _thinned(line, width) for name, line in learned.items()}, "loss",
            "step", order, stride=width, marked=marked,
        )),
    ]  # fmt: skip
    return tuple(chart for chart in charts if chart is not None)


def _thinned(line: Sequence[float | None], width: int) -> list[float | None]:
    """Average values over `width` steps.

    A missing number makes its mean missing.
    """
    pieces = [line[start : start + width] for start in range(0, len(line), width)]
    return [_mean(piece) for piece in pieces]


def _mean(piece: Sequence[float | None]) -> float | None:
    known = [value for value in piece if value is not None]
    return sum(known) / len(known) if known and len(known) == len(piece) else None


_MOST_CLASSES = 12
_FAMILIES = {"bert": "BERT", "distilbert": "DistilBERT", "roberta": "RoBERTa", "modernbert": "ModernBERT"}


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """Report content on one workload."""

    name: str
    recipe: str
    charts: tuple[Chart, ...]
    step_bars: Bars | None
    words: tuple[str, ...]
    exact: bool
    """Whether all platforms' losses and weights are bitwise equal at every step of the probe."""


def workload_view(
    workload: str, records: Mapping[str, LoadedRecord], reference: str, order: Sequence[str],
    marked: frozenset[str] = frozenset(),
) -> WorkloadView:  # fmt: skip
    """Build the report content on one workload. `records` has its platforms in the order of `order`."""
    base = records.get(reference)
    pairs = {name: Pair(base, record) for name, record in records.items() if base is not None and name != reference}
    taps = taps_chart(pairs, order, marked)
    equal = {name: _equal(pair) for name, pair in pairs.items()}
    return WorkloadView(
        name=clean(workload, 63),
        recipe=_recipe(next(iter(records.values()))),
        charts=((taps,) if taps else ()) + loss_charts(records, order, marked),
        step_bars=step_bars(records, order),
        words=_equalities(equal),
        exact=bool(equal) and all(same and all(same.values()) for same in equal.values()),
    )


def _recipe(record: LoadedRecord) -> str:
    spec = record.record.spec
    if isinstance(spec, CapturedSpec):
        return f"captured: {spec.steps} steps, seed {spec.seed}, batch {spec.batch_size}"
    model = spec.model
    family = _FAMILIES.get(model.family, clean(model.family, 40))
    return (
        f"{family} of {model.num_hidden_layers} layers, width {model.hidden_size}; {spec.task}; "
        f"batch {spec.batch_size}; "
        f"parts {', '.join(spec.parts)}; spec {record.record.spec_sha256[:12]}" + _classes(spec.data.class_names)
    )


def _classes(names: Sequence[str]) -> str:
    """Return the class names, unless they only repeat the numbers."""
    if not names or list(names) == [str(number) for number in range(len(names))]:
        return ""
    shown = [f"{number} = {clean(name, 60)}" for number, name in enumerate(names)]
    return f"; classes {first_of(shown, _MOST_CLASSES)}"


def _equal(pair: Pair) -> dict[str, bool]:
    """Return which evidence is bitwise equal in two records.

    Empty without a probe; without losses where a captured loop shows none.
    """
    if not pair.common:
        return {}
    losses = [(left.loss, right.loss) for left, right in pair.common]
    shown = any(loss is not None for both in losses for loss in both)
    return {
        "batches": all(left.batch == right.batch for left, right in pair.common),
        **({"losses": all(left is not None and left == right for left, right in losses)} if shown else {}),
        "weights after every step": all(left.weights == right.weights for left, right in pair.common),
    }


def _equalities(platforms: Mapping[str, Mapping[str, bool]]) -> tuple[str, ...]:
    """Return one line per group of bitwise equal platforms.

    Groups are in the order of the platforms.
    """
    groups: dict[tuple[tuple[str, bool], ...], list[str]] = {}
    for name, equalities in platforms.items():
        groups.setdefault(tuple(equalities.items()), []).append(name)
    return tuple(_equal_words(some_of(names), dict(equalities)) for equalities, names in groups.items())


def _equal_words(name: str, equalities: Mapping[str, bool]) -> str:
    if not equalities:
        return f"{name}: no probe on both sides, so the numbers were not compared"
    same, other = ([label for label, right in equalities.items() if right is side] for side in (True, False))
    if not same:
        return f"{name}: {listed(other)} differ from the reference"
    text = f"{name}: equal to the last bit at every step of the probe: {listed(same)}"
    return text + (f"; not equal: {listed(other)}" if other else "")
