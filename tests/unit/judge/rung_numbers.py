"""Changes of a record's steps and tensors, for the tests of the rungs of the computation."""

from __future__ import annotations

from typing import Any

from plumbline.schema.digest import digest_json

from .conftest import PARAMETERS, set_step
from .rung_records import Change, Content

STEP = 2
"""A step whose tensors were sketched."""
NAMES = tuple(PARAMETERS)


def of_step(step: int, **changes: Any) -> Change:
    return lambda content: set_step(content["evidence"]["probe"], step, changes)


def scaled(stage: str, name: str, factor: float = 1.0, *, step: int = STEP, **changes: Any) -> Change:
    """Scale a sketched tensor, with its norm, and change its entry."""

    def change(content: Content) -> None:
        for place, tap in enumerate(content["evidence"]["probe"]["taps"]):
            if (tap["step"], tap["stage"], tap["name"]) == (step, stage, name):
                tap.update({"norm": tap["norm"] * factor, "sha256": digest_json(str(factor))} | changes)
                content["arrays"]["sketches"]["sketch"][place] *= factor

    return change


def fingerprint(**changes: Any) -> Change:
    return lambda content: content["fingerprint"].update(changes)
