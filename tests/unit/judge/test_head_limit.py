"""Limit of a head's output: its few numbers measure an envelope by luck."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.pair import Pair
from plumbline.judge.rungs.gradient import gradient
from plumbline.records import LoadedRecord
from plumbline.schema.limits import FACTOR
from plumbline.schema.record import RunRecord
from plumbline.schema.tolerance import is_head
from tests.kept_results import kept

from .conftest import WIDTH, make_record, other_kernel

compare = kept(compare)

_STEP = 5
_INPUT, _HEAD = "layer.norm", "head"
_MEASURED = {_INPUT: 2.5e-6, _HEAD: 4e-7}
"""Envelopes of a real classifier and its input; the limits are 2e-5 and, after five steps, the floor of 7e-6."""


def _record(
    off: float = 0.0, envelope: Mapping[str, float] = _MEASURED, *, width: int = WIDTH, at: str = _HEAD
) -> LoadedRecord:
    """Return a record whose output `at` is off by a relative error at the last step with sketches."""
    made = make_record(fingerprint=other_kernel() if off else {})
    content = made.record.model_dump()
    probe, sketches = content["evidence"]["probe"], np.array(made.arrays["sketches"]["sketch"])
    errors = list(probe["envelope"]["errors"])
    for place, tap in enumerate(probe["taps"]):
        if (tap["step"], tap["stage"]) != (_STEP, "forward"):
            continue
        errors[place] = envelope.get(tap["name"], errors[place])
        if tap["name"] != _HEAD:
            tap["shape"] = (*tap["shape"][:-1], width)
        if tap["name"] == at and off:
            sketches[place] = sketches[place] * (1 + off)
            tap["sha256"] = "f" * 64
    probe["envelope"]["errors"] = errors
    return LoadedRecord(
        RunRecord.model_validate(content), made.folder, {**made.arrays, "sketches": {"sketch": sketches}}
    )


@pytest.mark.parametrize(("off", "verdict"), [(9e-6, "pass"), (1.9e-5, "pass"), (2.1e-5, "drift")])
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
    assert compare(_record(envelope=steady), _record(9e-6)).verdict == "drift"
    assert compare(_record(), _record(9e-6, steady)).verdict == "drift"


@pytest.mark.parametrize(("width", "verdict"), [(16, "pass"), (15, "drift")])
def test_a_layer_that_is_not_eight_times_narrower_measures_itself(width: int, verdict: str) -> None:
    assert compare(_record(width=width), _record(9e-6, width=width)).verdict == verdict


def test_an_output_as_wide_as_the_one_before_measures_itself() -> None:
    measured = {"layer.linear": 2.5e-6, _INPUT: 4e-7}
    assert compare(_record(envelope=measured), _record(9e-6, measured, at=_INPUT)).verdict == "drift"


def _of_widths(widths: list[int], limits: list[float]) -> LoadedRecord:
    """Return a record of one step's outputs with these widths and envelopes, and as many gradients."""
    made = make_record()
    content = made.record.model_dump()
    probe, count = content["evidence"]["probe"], len(widths)
    tap = {"step": 0, "kind": "L", "dtype": "float32", "norm": 1.0, "sha256": "a" * 64}
    probe["taps"] = [
        tap | {"stage": stage, "name": f"m{place}", "shape": (1, width)}
        for stage in ("forward", "gradient")
        for place, width in enumerate(widths)
    ]
    errors = [limit / FACTOR for limit in limits] * 2
    probe["envelope"]["errors"] = errors
    sketches = {"sketch": np.zeros((2 * count, 64))}
    return LoadedRecord(RunRecord.model_validate(content), made.folder, {**made.arrays, "sketches": sketches})


def test_the_nearest_output_that_is_wide_enough_gives_the_limit() -> None:
    generator = np.random.default_rng(7)
    for _ in range(20):
        widths = generator.choice([1, 2, 8, 16, 24, 64, 200], 40).tolist()
        limits = generator.uniform(1e-4, 1e-2, 40).tolist()
        record = _of_widths(widths, limits)
        expected: list[float] = []
        for place, width in enumerate(widths):
            wide = [at for at in range(place) if is_head(width, widths[at])]
            expected.append(max(limits[place], expected[wide[-1]] if wide else 0.0))
        assert [tap.limit for tap in Pair(record, record).errors(0, "forward")] == pytest.approx(expected)


def test_many_outputs_and_gradients_are_compared_in_one_pass() -> None:
    """Outputs of one width have no head: a scan of all earlier ones, or a set for each gradient, takes minutes."""
    count = 6_000
    record = _of_widths([16] * count, [1e-3] * count)
    pair = Pair(record, record)
    assert len(pair.errors(0, "forward")) == count
    assert gradient(pair, 0) is None
