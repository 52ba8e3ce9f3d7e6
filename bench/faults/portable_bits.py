"""Comparison of two records' portable and native bits."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from plumbline.records import LoadedRecord
from plumbline.schema.evidence import PortableEvidence

__all__ = ["Bits", "bits_of", "first_difference"]


@dataclass(frozen=True)
class Bits:
    """Effect of a fault or a benign change on the bits of a training."""

    bits: Literal["equal", "differ", "none"]
    """Of the portable leg; `none` where a record has none."""
    where: str = ""
    native: Literal["equal", "differ", ""] = ""
    """The weights after each step of the native training."""

    def to_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self)


def bits_of(reference: LoadedRecord, candidate: LoadedRecord | None) -> Bits:
    """Compare the legs of two records."""
    if candidate is None:
        return Bits("none", "no record")
    probes = (reference.record.evidence.probe, candidate.record.evidence.probe)
    if probes[0] is None or probes[1] is None or probes[0].portable is None or probes[1].portable is None:
        return Bits("none", candidate.record.exit.message)
    where = first_difference(probes[0].portable, probes[1].portable)
    weights = [[step.weights_sha256 for step in probe.steps] for probe in probes if probe]
    return Bits("differ" if where else "equal", where, "equal" if weights[0] == weights[1] else "differ")


def first_difference(left: PortableEvidence, right: PortableEvidence) -> str:
    """Return the first place where two legs differ, or ""."""
    if left.unportable != right.unportable:
        return f"operation {left.unportable or right.unportable}"
    for ours, theirs in zip(left.steps, right.steps, strict=False):
        for name in ("outputs", "loss", "gradients", "weights"):
            mine, other = getattr(ours, name), getattr(theirs, name)
            if name == "outputs":  # checkpointing calls modules again
                mine, other = (tuple(item for item in each if "#" not in item[0]) for each in (mine, other))
            if mine != other:
                places = dict(other) if name != "loss" else {}
                differing = [key for key, value in mine if places.get(key) != value] if name != "loss" else []
                return f"{name} of step {ours.step} {differing[0] if differing else ''}".strip()
    return "" if len(left.steps) == len(right.steps) else "number of steps"
