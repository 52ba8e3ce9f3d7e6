"""Trail of `speed`: start weights, losses, gradient norms, draws of dropout, and weights of each process."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.records import LoadedRecord

from .conftest import other_kernel
from .made_records import rounded, whole
from .test_speed_windows import checked_speed
from .test_withheld import log

LOSSES, NORMS = [0.5] * 14, [0.25] * 14
WEIGHTS = [[done, f"{done:016x}"] for done in (*range(9), 14)]
GENERATORS = [[4, "a" * 16], [14, "c" * 16]]


def of_torch(*sums: list[Any]) -> dict[str, Any]:
    return {"generators": {"torch": sums}}


def parted(values: list[float], step: int) -> list[float]:
    return [*values[:step], *(value + 0.25 for value in values[step:])]


def weighed(first: int) -> list[list[Any]]:
    """Return checksums of weights that differ after `first` steps and later."""
    return [[done, f"f{mark[1:]}" if done >= first else mark] for done, mark in WEIGHTS]


def trained(processes: int = 1, **changes: Any) -> LoadedRecord:
    given = {"losses": LOSSES, "gradient_norms": NORMS, "weights": WEIGHTS} | of_torch(*GENERATORS) | changes
    machine = {"num_processes": processes}
    return whole(checked_speed(), lambda content: log(content).update(given), fingerprint=machine)


FIRST: dict[str, tuple[dict[str, Any], str, int]] = {
    "draws": ({"losses": parted(LOSSES, 3)} | of_torch([4, "b" * 16], [14, "d" * 16]), "rng", 3),
    # A module, its settings, or its dropout.
    "the first loss": ({"losses": parted(LOSSES, 0)}, "operator", 0),
    # A gradient of an equal loss, as of one that contains the step before.
    "a gradient": (
        {"losses": parted(LOSSES, 2), "gradient_norms": parted(NORMS, 1), "weights": weighed(2)}, "gradient", 1,
    ),
    "a gradient that is not finite": (
        {"losses": parted(LOSSES, 2), "gradient_norms": [0.25, None, *NORMS[2:]], "weights": weighed(2)}, "gradient", 1,
    ),
    "an update": (
        {"losses": parted(LOSSES, 4), "gradient_norms": parted(NORMS, 4), "weights": weighed(3)}, "optimizer", 2,
    ),
    "an update whose first sign is a norm": (
        {"losses": parted(LOSSES, 5), "gradient_norms": parted(NORMS, 3), "weights": weighed(3)}, "optimizer", 2,
    ),
    "a later norm": ({"gradient_norms": parted(NORMS, 11), "weights": weighed(14)}, "gradient", 11),
    "a later norm, by little": (
        {"gradient_norms": [*NORMS[:11], NORMS[11] * (1 + 2e-7), *NORMS[12:]], "weights": weighed(14)},
        "unattributed", 11,
    ),
    "a module from a step on": (
        {"losses": parted(LOSSES, 5), "gradient_norms": parted(NORMS, 5), "weights": weighed(6)}, "operator", 5,
    ),
    # Behind the warm-up, an earlier update may differ as well.
    "a later loss": (
        {"losses": parted(LOSSES, 11), "gradient_norms": parted(NORMS, 11), "weights": weighed(14)}, "unattributed", 11,
    ),
    "final weights": ({"weights": weighed(14)}, "optimizer", 13),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_the_first_number_of_the_trail_that_differs_is_named(name: str) -> None:
    changes, code, step = FIRST[name]
    judgement = compare(trained(), trained(**changes), throughput=False)
    assert [cause.code for cause in judgement.causes] == [code]
    assert judgement.first_divergence.step == step
    # A machine that rounds differently has other losses, norms and weights.
    assert compare(rounded(checked_speed()), trained(**changes), throughput=False).verdict == "pass"


OWN: dict[str, tuple[dict[str, Any], int]] = {
    "clipping that ends": ({"clipped_norms": [1.0, 1.0, 2.0, 2.0]}, 2),
    "clipping to half of the norm": ({"clipped_norms": [1.0, 0.5]}, 1),
}


@pytest.mark.parametrize("machine", [{}, {"fingerprint": other_kernel()}], ids=["equal", "AVX2"])
@pytest.mark.parametrize("name", OWN)
def test_clipping_has_a_definition_on_any_machine(name: str, machine: dict[str, Any]) -> None:
    """The weights after such a step differ as well: they are not a fault of the optimizer."""
    changes, step = OWN[name]
    honest = {"gradient_norms": [2.0] * 14, "clipped_norms": [1.0] * 14, "weights": WEIGHTS}
    left = whole(checked_speed(), lambda content: log(content).update(honest))
    wrong = honest | changes | {"weights": weighed(step + 1)}
    right = whole(checked_speed(), lambda content: log(content).update(wrong), **machine)
    judgement = compare(left, right, throughput=False)
    assert [cause.code for cause in judgement.causes] == ["gradient"]
    assert judgement.first_divergence.step == step
    assert compare(left, left, throughput=False).verdict == "pass"


@pytest.mark.parametrize("isa", ["", "AVX2"])
def test_different_weights_before_the_first_step_are_named_whatever_the_machine(isa: str) -> None:
    """All machines load one file."""
    machine = {"fingerprint": other_kernel()} if isa else {}
    right = whole(checked_speed(), lambda content: log(content).update(weights=weighed(0)), **machine)
    judgement = compare(trained(), right, throughput=False)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["weights.init"])


@pytest.mark.parametrize("isa", ["", "AVX2"])
@pytest.mark.parametrize(
    ("step", "by", "code"),
    [
        (0, "weights", "weights.init"), (14, "learning rate", "schedule"),
        (14, "gradients", "gradient"), (14, "weights", "optimizer"),
    ],
)  # fmt: skip
def test_a_process_with_weights_of_its_own_is_a_drift_whatever_the_machine(
    isa: str, step: int, by: str, code: str
) -> None:
    """All processes of a training hold one model: one that missed an update shows without any reference."""
    found = [{"step": at, "rank": 1, "part": part, "event": "processes"} for at, part in ((15, "weights"), (step, by))]
    parted = lambda content: log(content).update(inconsistent=found)  # noqa: E731
    right = whole(checked_speed(), parted, **({"fingerprint": other_kernel()} if isa else {}))
    judgement = compare(whole(checked_speed()), right, throughput=False)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", [code])
    assert (judgement.first_divergence.step, judgement.first_divergence.at) == (step, by)


STARTS: dict[str, dict[str, Any]] = {
    "a seed": of_torch([0, "f" * 16], *GENERATORS),
    "a rate of dropout": {"dropout": [0.2]},
    "a draw before the first proven step": of_torch([0, "e" * 16], [4, "b" * 16], [14, "d" * 16]),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_seed_or_a_rate_of_dropout_is_named_whatever_the_machine(name: str) -> None:
    """Windows have no dropout, and behind other kernels no loss is due."""
    honest = {"dropout": [0.1]} | of_torch([0, "e" * 16], *GENERATORS)
    left = trained(**honest)
    right = rounded(checked_speed(), lambda content: log(content).update(honest | STARTS[name]))
    judgement = compare(left, right, throughput=False)
    assert [cause.code for cause in judgement.causes] == ["rng"]
    assert compare(left, rounded(checked_speed(), lambda content: log(content).update(honest))).verdict == "pass"


def test_several_processes_and_releases_of_torch_may_start_from_other_generators() -> None:
    left = trained(**of_torch([0, "e" * 16], *GENERATORS))
    seeds = of_torch([0, "f" * 16], *GENERATORS)
    for machine in ({"num_processes": 2}, {"packages": {"torch": "9.9"}}):
        fingerprint = other_kernel() | machine
        right = rounded(checked_speed(), lambda content: log(content).update(seeds), fingerprint=fingerprint)
        assert compare(left, right, throughput=False).verdict == "pass"


@pytest.mark.parametrize(("rate", "verdict"), [(0.1, "pass"), (0.0, "drift"), (0.3, "drift")])
def test_a_rate_of_dropout_that_the_spec_does_not_ask_for_is_a_drift(rate: float, verdict: str) -> None:
    judgement = compare(*[trained(dropout=[rate])] * 2, throughput=False)
    assert judgement.verdict == verdict
    assert [cause.code for cause in judgement.causes] == ["rng"] * (verdict == "drift")
