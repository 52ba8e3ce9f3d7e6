"""Rounding of a weight's first update, which the weight keeps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord
from tests.kept_results import kept

from .conftest import make_record, other_kernel

compare = kept(compare)

_NAME = "head.weight"
_EARLY = 1e-4
"""Envelope of the first update, where a gradient is nearly zero: the limit there is eight times as much."""


def _record(errors: Mapping[int, float], *, early: float = _EARLY) -> LoadedRecord:
    """Return a record whose weight is off by relative errors after some steps, on a different kernel if at all."""
    made = make_record(fingerprint=other_kernel() if errors else {})
    content = made.record.model_dump()
    probe, sketches = content["evidence"]["probe"], np.array(made.arrays["sketches"]["sketch"])
    measured = list(probe["envelope"]["errors"])
    norms = {tap["step"]: tap["norm"] for tap in probe["taps"] if (tap["stage"], tap["name"]) == ("weight", _NAME)}
    for place, tap in enumerate(probe["taps"]):
        if (tap["stage"], tap["name"]) != ("weight", _NAME):
            continue
        measured[place] = early if tap["step"] == 0 else measured[place]
        if tap["step"] in errors:
            # An error of the first weight's size, so that equal numbers are equal differences at all steps.
            sketches[place] = sketches[place] * (1 + errors[tap["step"]] * norms[0] / norms[tap["step"]])
            tap["sha256"] = f"{tap['step']:064x}"
    probe["envelope"]["errors"] = measured
    arrays = {**made.arrays, "sketches": {"sketch": sketches}}
    return LoadedRecord(RunRecord.model_validate(content), made.folder, arrays)


@pytest.mark.parametrize(
    ("errors", "verdict"),
    [
        ({0: 4e-4}, "pass"),
        ({0: 4e-4, 2: 4e-4, 5: 4e-4}, "pass"),
        ({2: 4e-4, 5: 4e-4}, "drift"),  # not there before
        ({0: 4e-4, 2: 4e-4, 5: 6e-4}, "drift"),  # and more
        ({0: 4e-4, 2: 4.4e-4}, "pass"),  # the floor of a weight, 5.6e-5, comes on top
    ],
)
def test_a_difference_that_was_rounding_after_the_first_update_is_no_drift_later(
    errors: dict[int, float], verdict: str
) -> None:
    assert compare(_record({}), _record(errors)).verdict == verdict


def test_a_difference_over_its_limit_excuses_no_later_one() -> None:
    errors = {0: 4e-4, 2: 4e-4, 5: 4e-4}
    judgement = compare(_record({}, early=2e-7), _record(errors, early=2e-7))
    assert judgement.verdict == "drift"
    assert judgement.first_divergence is not None
    assert judgement.first_divergence.step == 0
