"""Errors and limits of a pair's tensors, losses and norms, on both sides of each rule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from plumbline.judge.pair import Pair, TapError
from plumbline.records import LoadedRecord
from plumbline.schema.evidence import Tap
from plumbline.schema.tolerance import floor_of
from plumbline.schema.verdict import Finding

from .conftest import make_record
from .made_records import (
    Change,
    Content,
    edit,
    in_spec,
    probe,
    whole,
    without,
)
from .rung_records import first_bits


def tapped(step: int, stage: str, name: str, **fields: Any) -> Change:
    def change(content: Content) -> None:
        for tap in probe(content)["taps"]:
            if (tap["step"], tap["stage"], tap["name"]) == (step, stage, name):
                tap.update(fields)

    return change


TAP = Tap(step=0, stage="forward", name="m", kind="L", dtype="float32", shape=(1,), norm=1.0, sha256="a" * 64)


@pytest.mark.parametrize(
    ("error", "bound", "over", "ratio", "shown"),
    [
        (3.0, 2.0, True, 1.5, 2.0), (2.0, 2.0, False, 1.0, 2.0), (1.0, 4.0, False, 0.25, 4.0),
        (0.0, 0.0, False, 0.0, 0.0), (1.0, 0.0, True, 0.0, 0.0), (1.0, math.inf, False, 0.0, None),
        (math.inf, math.inf, True, math.inf, None), (math.nan, 1.0, True, math.inf, 1.0),
    ],
)  # fmt: skip
def test_an_error_is_measured_in_units_of_its_limit(
    error: float, bound: float, over: bool, ratio: float, shown: float | None
) -> None:
    item = TapError(TAP, TAP, error, bound, (None, None))
    finding = Finding(check="probe.forward", outcome="drift", **item.numbers)
    assert (item.over, item.ratio, finding.limit) == (over, ratio, shown)
    assert finding.observed == (error if math.isfinite(error) else None)


def test_a_pair_without_a_probe_has_no_steps_errors_or_notes() -> None:
    bare = edit(whole(), without("probe"))
    for pair in (Pair(bare, whole()), Pair(whole(), bare), Pair(bare, bare)):
        assert (pair.probes, pair.common, pair.tap_steps, pair.errors(0, "forward")) == (None, (), frozenset(), ())
        assert pair.rounding_only == frozenset()
        assert pair.loss_limit(3) == pytest.approx(floor_of("loss", "fp32") * 2 ** (1 / 3))
        assert first_bits(pair) is None


def test_steps_limit_a_pair_and_the_precision_is_the_probes() -> None:
    pair = Pair(make_record(), make_record(), steps=4)
    assert [left.step for left, _ in pair.common] == [0, 1, 2, 3]
    assert [len(Pair(make_record(), make_record(), steps=count).common) for count in (None, 0, 9)] == [6, 0, 6]
    assert pair.tap_steps == {0, 2, 5}
    made = edit(whole(), in_spec("probe", precision="bf16"), in_spec("learn", precision="fp16"))
    assert Pair(made, made).precision == "bf16"
    gone = edit(made, lambda content: content["spec"].update(probe=None))
    assert Pair(gone, gone).precision == "fp32"


def errors_of(left: LoadedRecord, right: LoadedRecord, stage: Any = "forward", **options: Any) -> dict[str, TapError]:
    return {item.reference.name: item for item in Pair(left, right, **options).errors(0, stage)}


def test_a_tensor_that_cannot_be_compared_is_infinitely_far() -> None:
    left, other = make_record(), {"sha256": "e" * 64}
    cases: list[tuple[float, tuple[Change, ...]]] = [
        (math.inf, (tapped(0, "forward", "embed", norm=None),)),
        (math.inf, (tapped(0, "forward", "embed", norm=None, **other),)),
        (math.inf, (tapped(0, "forward", "embed", shape=(4, 15), **other),)),
        (0.0, (tapped(0, "forward", "embed", **other),)),
    ]
    for error, changes in cases:
        right = edit(left, *changes)
        assert errors_of(left, right)["embed"].error == error
        assert errors_of(right, left)["embed"].error == error
    moved = edit(left, tapped(0, "forward", "embed", **other))
    bare = LoadedRecord(moved.record, moved.folder)
    assert errors_of(left, bare)["embed"].error == errors_of(bare, left)["embed"].error == math.inf
    norm = next(tap.norm for tap in left.record.evidence.probe.taps if tap.name == "embed")  # type: ignore[union-attr]
    assert norm
    wider = edit(left, tapped(0, "forward", "embed", norm=norm * 1.25, **other))
    assert errors_of(left, wider)["embed"].error == pytest.approx(0.25)
    assert errors_of(wider, left)["embed"].error == pytest.approx(0.2)
    assert errors_of(left, wider)["head"].error == 0


def test_a_limit_grows_from_the_first_step_and_noise_has_none() -> None:
    pair = Pair(make_record(), make_record())
    for step in (0, 2, 5):
        wanted = floor_of("forward", "fp32") * 2 ** (step / 9)
        assert [item.limit for item in pair.errors(step, "forward")] == pytest.approx([wanted] * 4)
        assert pair.loss_limit(step) == pytest.approx(floor_of("loss", "fp32") * 2 ** (step / 9))
    assert replace(pair, scale=0.25).loss_limit(0) == floor_of("loss", "fp32") / 4
    noise = frozenset({("forward", "layer.norm"), ("gradient", "head")})
    quiet = errors_of(pair.reference, pair.candidate, noise=noise)
    assert [name for name, item in quiet.items() if math.isinf(item.limit)] == ["layer.norm"]
    assert quiet["layer.norm"].places == (2, 2)
