"""Evidence that only one of two captured records has: unknown on the other side, and so never equal. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from plumbline.judge.gaps import Gap
from plumbline.schema.captured import CapturedEvidence
from plumbline.schema.evidence import ProbeEvidence
from plumbline.schema.fact import fact
from plumbline.schema.record import RunRecord

_Held = Callable[[ProbeEvidence, CapturedEvidence], object]

_ITEMS: dict[str, _Held] = {
    "losses": lambda probe, _: any(loss is not None for loss in probe.losses),
    "logits": lambda probe, _: any(probe.logits),
    "weights": lambda probe, _: probe.weights,
    "generators": lambda probe, _: probe.generators,
    "learning rates": lambda probe, _: probe.learning_rates,
    "recorded steps": lambda _, captured: captured.recorded,
    "module outputs": lambda probe, _: any(tap.stage == "forward" for tap in probe.taps),
    "gradients": lambda probe, _: any(tap.stage == "gradient" for tap in probe.taps),
    "updated weights": lambda probe, _: any(tap.stage == "optimizer" for tap in probe.taps),
    "proofs": lambda probe, _: probe.proofs,
    "exchanges": lambda _, captured: captured.exchanges,
    "a pass in fp64": lambda _, captured: captured.window is not None and not captured.window.lost,
    "rows": lambda _, captured: any(any(steps) for steps in captured.rows.values()),
    "float inputs": lambda _, captured: any(captured.inputs.values()),
}
"""What a captured record holds, by name."""
COLUMNS = "captured.columns"
"""Check of columns whose absence looks like a difference: without them nothing is judged."""
_COLUMNS = frozenset({"losses", "logits", "weights", "generators", "learning rates"})


def one_sided(reference: RunRecord, candidate: RunRecord) -> Iterator[tuple[str, Gap]]:
    """Yield (side, gap) for each item that only the other record has."""
    sides = [(each.evidence.probe, each.evidence.captured) for each in (reference, candidate)]
    whole = [(probe, captured) for probe, captured in sides if probe is not None and captured is not None]
    if len(whole) < len(sides):
        return
    for name, held in _ITEMS.items():
        has = [bool(held(probe, captured)) for probe, captured in whole]
        if has[0] != has[1]:
            check = COLUMNS if name in _COLUMNS else "captured.evidence"
            yield "candidate" if has[0] else "reference", Gap(check, name, fact("gap.one-sided", name=name))
