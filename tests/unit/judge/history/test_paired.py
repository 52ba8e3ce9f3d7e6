"""The paired test is exact whatever the noise, knows the level that its blocks reach, and never acquits below it."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from plumbline.judge.history.allowed import allowed_for
from plumbline.judge.history.decision import Answers, Past
from plumbline.judge.history.engine import decide
from plumbline.judge.statistics.paired import least_blocks, paired_test
from plumbline.schema.experiment import AbOrder

LOST = (0.35,) * 4
"""Reruns of a night that lost 30%: -log(0.7)."""


def _answers(num_blocks: int, loss: float, num_tested: int, seed: int = 1) -> Answers:
    runs = np.random.default_rng(seed).normal(0, 0.01, (num_blocks, 4))
    return Answers(LOST, runs[:, :2] + loss, runs[:, 2:], num_tested)


def _past() -> Past:
    return Past(np.random.default_rng(0).normal(0, 0.01, 60))


@pytest.mark.parametrize(
    ("num_platforms", "num_metrics", "blocks"), [(4, 1, 6), (4, 5, 7), (4, 10, 7), (21, 10, 8), (200, 10, 9)]
)
def test_a_separated_loss_of_any_suite_is_the_softwares(num_platforms: int, num_metrics: int, blocks: int) -> None:
    allowed = allowed_for(num_platforms=num_platforms, num_series=num_platforms * num_metrics)
    assert allowed.ab_blocks(num_metrics) == blocks
    decided = decide(_past(), LOST[0], allowed, _answers(blocks, LOST[0], num_metrics))
    assert (decided.verdict, decided.reason) == ("drift", "software")


@pytest.mark.parametrize("blocks", [2, 3, 4, 5])
def test_too_few_blocks_acquit_no_loss_and_say_how_many_are_missing(blocks: int) -> None:
    allowed = allowed_for(num_platforms=4, num_series=40)
    assert 6.0**-blocks > allowed.ab_alpha(10)
    decided = decide(_past(), LOST[0], allowed, _answers(blocks, LOST[0], 10))
    assert (decided.verdict, decided.reason) == ("inconclusive", "unconfirmed")
    assert decided.missing_blocks >= 6 - blocks


def test_half_of_the_loss_is_ruled_out_before_the_software_is_acquitted() -> None:
    allowed = allowed_for(num_platforms=4, num_series=40)
    clear, noisy = _answers(6, 0.0, 1), _answers(6, 0.0, 1)
    assert decide(_past(), LOST[0], allowed, clear).reason == "machine"
    assert noisy.tonight is not None
    assert noisy.baseline is not None
    wide = Answers(LOST, noisy.tonight * 60, noisy.baseline * 60)
    assert decide(_past(), LOST[0], allowed, wide).reason == "unconfirmed"


def test_the_chance_is_that_of_all_orders_within_blocks() -> None:
    runs = np.random.default_rng(3).standard_t(2, (3, 4)).round(1)  # with ties
    found = paired_test(runs[:, :2], runs[:, 2:], 0.05)
    assert found is not None
    aligned = np.round(runs - runs.mean(axis=1, keepdims=True), 12)
    ranks = np.array([[(aligned < x).sum() + (aligned == x).sum() / 2 for x in row] for row in aligned])
    sums = [
        sum(ranks[row, list(half)].sum() for row, half in enumerate(order))
        for order in product(combinations(range(4), 2), repeat=3)
    ]
    assert found.p_value == pytest.approx(np.mean(np.array(sums) >= ranks[:, :2].sum() - 1e-9))


@pytest.mark.parametrize("blocks", [5, 7, 12, 50])
def test_full_separation_has_the_smallest_chance_and_its_level(blocks: int) -> None:
    runs = np.random.default_rng(2).normal(0, 0.01, (blocks, 4))
    found = paired_test(runs[:, :2] + 1, runs[:, 2:], 0.05)
    assert found is not None
    assert found.p_value == pytest.approx(6.0**-blocks, rel=1e-9)
    assert least_blocks(6.0**-blocks) == blocks


def test_the_order_of_a_block_is_drawn_and_balanced() -> None:
    orders = Counter(
        AbOrder(packages=(("a", "1"),), num_blocks=50, seconds=1, seed=seed).block(block)
        for seed in range(20)
        for block in range(50)
    )
    assert len(orders) == 6
    assert {sum(order) for order in orders} == {2}
    assert min(orders.values()) > 120  # of 1000; 167 are expected


def test_a_rhythm_of_the_machine_is_no_difference() -> None:
    # A rhythm of the machine, and a trend. The old fixed order A B B A, B A A B took it for a difference.
    rhythm = np.tile([0.05, 0, 0, 0.05, 0, 0.05, 0.05, 0], 3) + np.linspace(0, 0.05, 24)
    called = 0
    for seed in range(200):
        order = AbOrder(packages=(("a", "1"),), num_blocks=6, seconds=1, seed=seed)
        is_ours = np.array([order.block(block) for block in range(6)])
        runs = rhythm.reshape(6, 4)
        found = paired_test(
            np.array([row[own] for row, own in zip(runs, is_ours, strict=True)]),
            np.array([row[~own] for row, own in zip(runs, is_ours, strict=True)]), 0.05,
        )  # fmt: skip
        assert found is not None
        called += found.p_value <= 0.05
    assert called <= 20  # ten are expected
