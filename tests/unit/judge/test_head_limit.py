"""Limit of a head's output: its few numbers measure an envelope by luck."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord
from plumbline.schema.record import RunRecord

from .conftest import WIDTH, make_record, other_kernel
from .kept_verdicts import kept

compare = kept(compare)

_STEP = 5
_INPUT, _HEAD = "layer.norm", "head"
_MEASURED = {_INPUT: 2.5e-6, _HEAD: 4e-7}
"""Envelopes of a real classifier and its input; the limits are 2e-5 and the floor, 4.8e-6."""


def _record(
    off: float = 0.0, envelope: Mapping[str, float] = _MEASURED, *, width: int = WIDTH, own: float = 2e-7,
    at: str = _HEAD,
) -> LoadedRecord:  # fmt: skip
    """Return a record whose output `at` is off by a relative error at the last step with sketches."""
    made = make_record(fingerprint=other_kernel() if off else {})
    content = made.record.model_dump()
    probe, sketches = content["evidence"]["probe"], np.array(made.arrays["sketches"]["sketch"])
    errors, exact = list(probe["envelope"]["errors"]), list(probe["envelope"]["fp64_errors"])
    for place, tap in enumerate(probe["taps"]):
        if (tap["step"], tap["stage"]) != (_STEP, "forward"):
            continue
        errors[place] = envelope.get(tap["name"], errors[place])
        if tap["name"] == _INPUT:
            exact[place] = own
        if tap["name"] != _HEAD:
            tap["shape"] = (*tap["shape"][:-1], width)
        if tap["name"] == at and off:
            sketches[place] = sketches[place] * (1 + off)
            tap["sha256"] = "f" * 64
    probe["envelope"] |= {"errors": errors, "fp64_errors": exact}
    return LoadedRecord(
        RunRecord.model_validate(content), made.folder, {**made.arrays, "sketches": {"sketch": sketches}}
    )


@pytest.mark.parametrize(("off", "verdict"), [(6e-6, "pass"), (1.9e-5, "pass"), (2.1e-5, "drift")])
def test_a_head_has_the_limit_of_its_input(off: float, verdict: str) -> None:
    judgement = compare(_record(), _record(off))
    assert judgement.verdict == verdict
    if verdict == "drift":
        assert judgement.first_divergence is not None
        assert judgement.first_divergence.at == _HEAD


def test_its_own_limit_counts_where_it_is_larger() -> None:
    wide = {_INPUT: 4e-7, _HEAD: 2.5e-6}
    assert compare(_record(envelope=wide), _record(1.9e-5, wide)).verdict == "pass"


def test_one_run_alone_does_not_raise_the_limit() -> None:
    """A broken run, whose input scatters, must not vouch for its own head."""
    steady = {_INPUT: 4e-7, _HEAD: 4e-7}
    assert compare(_record(envelope=steady), _record(6e-6)).verdict == "drift"
    assert compare(_record(), _record(6e-6, steady)).verdict == "drift"


@pytest.mark.parametrize(("width", "verdict"), [(16, "pass"), (15, "drift")])
def test_a_layer_that_is_not_eight_times_narrower_measures_itself(width: int, verdict: str) -> None:
    assert compare(_record(width=width), _record(6e-6, width=width)).verdict == verdict


def test_an_output_as_wide_as_the_one_before_measures_itself() -> None:
    measured = {"layer.linear": 2.5e-6, _INPUT: 4e-7}
    assert compare(_record(envelope=measured), _record(6e-6, measured, at=_INPUT)).verdict == "drift"


def test_an_input_without_a_limit_gives_none() -> None:
    judgement = compare(_record(own=0.6), _record(6e-6, own=0.6))
    assert judgement.verdict == "drift"
