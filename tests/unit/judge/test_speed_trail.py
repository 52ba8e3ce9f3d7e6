"""What `speed` left behind its steps: draws of dropout, and weights of each process."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare

from .conftest import other_kernel
from .made_records import whole
from .test_withheld import replay, trail


def test_another_count_of_draws_is_dropout_and_the_same_count_is_not() -> None:
    def parted(mark: str) -> Any:
        return lambda content: trail(content).update(losses=[0.25] + [0.5] * 13, generators=[(4, "a" * 16), (14, mark)])

    plain = lambda content: trail(content).update(generators=[(4, "a" * 16), (14, "a" * 16)])  # noqa: E731
    for mark, code in (("b" * 16, "rng"), ("a" * 16, "operator")):
        judgement = compare(whole(replay(), plain), whole(replay(), parted(mark)), throughput=False)
        assert [cause.code for cause in judgement.causes] == [code]


@pytest.mark.parametrize("isa", ["", "AVX2"])
def test_a_process_with_weights_of_its_own_is_a_drift_whatever_the_machine(isa: str) -> None:
    """All processes of a training hold one model: one that missed an update shows without any reference."""
    parted = lambda content: trail(content).update(apart=[(14, 1)])  # noqa: E731
    right = whole(replay(), parted, **({"fingerprint": other_kernel()} if isa else {}))
    judgement = compare(whole(replay()), right, throughput=False)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["optimizer"])
    assert judgement.first_divergence.at == "weights of process 1"
