"""The evidence of one workload: what is equal, what is drawn, what a step is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from plumbline.judge.pair import Pair
from plumbline.records import LoadedRecord
from plumbline.report.charts import Chart
from plumbline.report.evidence_charts import loss_charts
from plumbline.report.taps_chart import taps_chart
from plumbline.report.timing import Bars, step_bars
from plumbline.report.words import clean, listed

__all__ = ["WorkloadView", "workload_views"]

_MOST_CLASSES = 12
_FAMILIES = {"bert": "BERT", "distilbert": "DistilBERT", "roberta": "RoBERTa", "modernbert": "ModernBERT"}


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """The evidence of one workload."""

    name: str
    recipe: str
    charts: tuple[Chart, ...]
    step_bars: Bars | None
    words: tuple[str, ...]
    exact: bool
    """Every platform's losses and weights are equal to the last bit, at every step of the probe."""


def workload_views(
    lists: Mapping[str, Sequence[LoadedRecord]], reference: str, order: Sequence[str],
    marked: frozenset[str] = frozenset(),
) -> tuple[WorkloadView, ...]:  # fmt: skip
    """The evidence of each workload, in the order in which the records name them."""
    names = list(dict.fromkeys(one.record.spec.workload for found in lists.values() for one in found))
    views = []
    for workload in names:
        chosen = {
            platform: next(one for one in found if one.record.spec.workload == workload)
            for platform, found in lists.items()
            if any(one.record.spec.workload == workload for one in found)
        }
        ordered = {name: chosen[name] for name in order if name in chosen}
        base = ordered.get(reference)
        pairs = {name: Pair(base, one) for name, one in ordered.items() if base is not None and name != reference}
        taps = taps_chart(pairs, order)
        charts = ((taps,) if taps else ()) + loss_charts(ordered, order, marked)
        equal = {name: _equal(pair) for name, pair in pairs.items()}
        views.append(
            WorkloadView(
                name=clean(workload, 63),
                recipe=_recipe(next(iter(ordered.values()))),
                charts=charts,
                step_bars=step_bars(ordered, order),
                words=tuple(_equal_words(name, found) for name, found in equal.items()),
                exact=bool(equal) and all(found and all(found.values()) for found in equal.values()),
            )
        )
    return tuple(views)


def _recipe(record: LoadedRecord) -> str:
    spec = record.record.spec
    model = spec.model
    family = _FAMILIES.get(model.family, clean(model.family, 40))
    return (
        f"{family} of {model.num_hidden_layers} layers, width {model.hidden_size}; {spec.task}; "
        f"batch {spec.batch_size}; "
        f"parts {', '.join(spec.parts)}; spec {record.record.spec_sha256[:12]}" + _classes(spec.data.class_names)
    )


def _classes(names: Sequence[str]) -> str:
    """Return what the labels stand for, where the dataset names its classes and the names say more than the numbers."""
    if not names or list(names) == [str(number) for number in range(len(names))]:
        return ""
    more = f" and {len(names) - _MOST_CLASSES} more" if len(names) > _MOST_CLASSES else ""
    listed_names = ", ".join(f"{number} = {clean(name, 60)}" for number, name in enumerate(names[:_MOST_CLASSES]))
    return f"; classes {listed_names}{more}"


def _equal(pair: Pair) -> dict[str, bool]:
    """What is equal to the last bit: the strongest thing that can be said of a pair. Empty without a probe."""
    if not pair.common:
        return {}
    return {
        "batches": all(one.batch == other.batch for one, other in pair.common),
        "losses": all(one.loss is not None and one.loss == other.loss for one, other in pair.common),
        "weights after every step": all(one.weights_sha256 == other.weights_sha256 for one, other in pair.common),
    }


def _equal_words(name: str, found: Mapping[str, bool]) -> str:
    if not found:
        return f"{name}: no probe on both sides, so nothing is said of the numbers"
    same, other = ([what for what, right in found.items() if right is side] for side in (True, False))
    if not same:
        return f"{name}: {listed(other)} are not the reference's"
    words = f"{name}: equal to the last bit at every step of the probe: {listed(same)}"
    return words + (f"; not equal: {listed(other)}" if other else "")
