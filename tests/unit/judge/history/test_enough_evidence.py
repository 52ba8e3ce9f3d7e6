"""How many nights, and how clear an A/B, show a loss or end one: both sides of each limit."""

from __future__ import annotations

import numpy as np
import pytest

from plumbline.judge.history.decision import Answers, Call, Past
from plumbline.judge.history.detection import is_ruled_out, lasting
from plumbline.judge.history.engine import decide
from plumbline.judge.history.experiments import judge_reruns
from plumbline.judge.history.reference import Reference, reference_of
from tests.unit.judge.history import nights
from tests.unit.judge.history.test_kept import steady

ALLOWED = nights.ALLOWED.of("throughput")


@pytest.mark.parametrize(("blocks", "num_open"), [
    ([[0.0, 0.001, 0.001, 0.0]] * 2, 1),  # nothing is clearer, but two blocks reach 1/36 alone
    ([[0.018, 0.020, 0.032, 0.037], [0.030, 0.038, 0.009, 0.012], [0.001, 0.005, 0.034, 0.016]], 0),  # 4/216
    ([[np.nan] * 4] * 3, 1),
])  # fmt: skip
def test_an_ab_ends_a_reported_loss_at_half_the_level_of_an_interval(blocks: list[list[float]], num_open: int) -> None:
    before = reference_of(steady(40), floor=1e-3)
    assert before is not None
    call = Call(40, before, 0.05, 0, is_software=True)
    past = Past(np.append(steady(40), steady(5) + 0.05), level=40, untested=40, calls=(call,), prior=before)
    runs, tonight = np.array(blocks), before.centre + 0.01
    decided = decide(past, tonight, ALLOWED, Answers((tonight,) * 4, runs[:, :2], runs[:, 2:]))
    assert (decided.verdict, decided.open_calls) == ("drift" if num_open else "pass", num_open)


@pytest.mark.parametrize(("before", "after", "size", "times", "is_shown"), [
    (20, 20, 0.018, 1, True),
    (19, 20, 0.018, 1, False),  # fewer nights may hide their autocorrelation
    (25, 20, 0.016, 1, True),
    (20, 20, 0.022, 2, False),  # the same night twice
])  # fmt: skip
def test_noise_counts_as_white_if_forty_nights_show_no_autocorrelation(
    before: int, after: int, size: float, times: int, is_shown: bool
) -> None:
    older, newer = (np.repeat(steady(num // times), times) for num in (before, after))
    reference = reference_of(older, floor=1e-3, is_whole=True)
    assert reference is not None
    assert (lasting(np.append(older, newer + size), reference, ALLOWED.lasting_alpha) > 0) == is_shown


@pytest.mark.parametrize(("num_between", "is_shown"), [(19, True), (20, False)])
def test_five_lost_nights_beside_seven_show_a_loss_until_twenty_more_can(num_between: int, is_shown: bool) -> None:
    reference = reference_of(steady(7), floor=1e-3, is_whole=True)
    assert reference is not None
    between = np.full(num_between, reference.centre - 0.001)
    here = np.concatenate([steady(7), between, steady(5, 0.002) + 0.1])
    assert (lasting(here, reference, 5e-4) > 0) == is_shown


@pytest.mark.parametrize(("is_known", "num_good", "is_over"), [
    (False, 4, False), (False, 5, True), (True, 3, False), (True, 4, True),
])  # fmt: skip
def test_the_newest_five_nights_end_a_loss_and_the_newest_three_do_not(
    is_known: bool, num_good: int, is_over: bool
) -> None:
    since = np.append(steady(5, 0.003) + 0.06, steady(num_good, 0.003))
    assert is_ruled_out(0.06, since, Reference(0.02, 0.01, 60, 0.0), is_known=is_known) == is_over


@pytest.mark.parametrize(("count", "rho", "later", "freedom"), [
    (20, 0.0, 0, 11.4), (20, 0.5, 0, 3.4), (2, 0.0, 0, 1.0), (20, 0.0, 1, 11.4), (20, 0.0, 11, 17.4),
])  # fmt: skip
def test_a_robust_spread_has_six_tenths_of_the_degrees_of_freedom(
    count: int, rho: float, later: int, freedom: float
) -> None:
    """docs/MATH.md: they decide the quantile of each detection."""
    assert Reference(0.0, 0.01, count, rho, later).freedom == pytest.approx(freedom)


@pytest.mark.parametrize("reruns", [(0.05, 0.06, 0.055, 0.049), (0.05, 0.06), (0.05,)])
def test_the_spread_of_reruns_which_sets_the_size_of_an_ab_is_their_sd(reruns: tuple[float, ...]) -> None:
    found = judge_reruns((*reruns, np.nan), Reference(0.0, 0.01, 20, 0.0))
    assert found.spread == pytest.approx(np.std(reruns, ddof=1) if len(reruns) > 1 else 0.0)
