"""The whole training is compared: a curve that parts after equal bits is drift, whatever version a library has."""

from __future__ import annotations

import random

import pytest

from plumbline.schema.suite import Gates
from plumbline.upgrade.comparison import LOOKS, compare_inputs, compare_training, has_equal_bits, paired_drop
from plumbline.upgrade.inputs import Inputs
from tests.said import said
from tests.unit.judge.conftest import make_record, other_kernel
from tests.unit.judge.made_records import learned, with_evidence

LIBRARY = {"packages": {"transformers": "9.9"}}
"""Another version of a library that may round differently."""


def test_another_dropout_is_drift_though_the_library_changed_its_version():
    reference = learned(0.85, (0.7, 0.5), "a", dropout=(0.1,))
    candidate = learned(0.85, (0.71, 0.5), "b", dropout=(0.15,), fingerprint=LIBRARY)
    judgement = compare_training(reference, candidate, Gates())
    assert has_equal_bits(judgement)
    assert judgement.verdict == "drift"
    assert judgement.causes[0].code == "rng"
    assert "dropout is 0.15 instead of 0.1" in said(judgement.causes[0].why)
    assert judgement.first_divergence.part == "learn"


def test_the_same_training_passes():
    reference = learned(0.85, (0.7, 0.5), "a")
    same = learned(0.85, (0.7, 0.5), "a", fingerprint=LIBRARY)
    assert compare_training(reference, same, Gates()).verdict == "pass"


@pytest.mark.parametrize(("first", "verdict"), [(0.7000001, "pass"), (0.71, "drift")])
def test_rounding_is_allowed_in_a_curve_where_the_probe_shows_other_kernels(first, verdict):
    reference = learned(0.85, (0.7, 0.5), "a")
    kernel = make_record(fingerprint=other_kernel(), noise={"layer.linear": 1e-7})
    curve = learned(0.85, (first, 0.5), "b").record.evidence.learn
    judgement = compare_training(reference, with_evidence(kernel, learn=curve.to_json()), Gates())
    assert not has_equal_bits(judgement)
    assert judgement.verdict == verdict


def test_each_input_is_compared_by_its_digest():
    ours = Inputs(rows="a" * 64, vocabulary="b" * 64, token_ids="c" * 64, weights="d" * 64)
    assert compare_inputs(ours, ours).verdict == "pass"
    codes = {
        "rows": "data.content",
        "vocabulary": "tokenization",
        "token_ids": "tokenization",
        "weights": "weights.init",
    }
    for name, code in codes.items():
        judgement = compare_inputs(ours, ours.replace(**{name: "e" * 64}))
        assert judgement.verdict == "drift"
        assert [cause.code for cause in judgement.causes] == [code]


def decided(loss, spread, seed):
    generator = random.Random(seed)
    ratios = []
    for count in LOOKS:
        ratios += [generator.gauss(-loss, spread) for _ in range(count - len(ratios))]
        found = paired_drop(ratios, slower_above=0.025, fast_below=0.05)
        if found.outcome != "undecided":
            break
    return found.outcome


@pytest.mark.long
def test_a_loss_of_five_percent_is_caught_and_none_is_no_alarm():
    runs = range(200)
    caught = sum(decided(0.0513, 0.01, seed) == "slower" for seed in runs)
    alarms = sum(decided(0.0, 0.01, seed) == "slower" for seed in runs)
    assert caught >= 180
    assert alarms <= 2
    noisy = range(1000)
    assert sum(decided(0.025, 0.03, seed) == "slower" for seed in noisy) <= 50
    assert sum(decided(0.05, 0.03, seed) == "as fast" for seed in noisy) <= 50
    assert paired_drop([0.0, float("nan"), 0.0], slower_above=0.025, fast_below=0.05) is None
