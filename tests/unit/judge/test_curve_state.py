"""What a learning curve shows by itself: state that changed, processes apart, and the rounding of its windows."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare
from plumbline.schema.verdict import Judgement
from tests.said import said

from .made_records import Content, rounded, whole, windows
from .rung_records import END


def two(**changes: Any) -> Content:
    """Return the evidence of a curve's two windows, each with these changes."""
    return {"portable": windows(0, 7, **({"evaluation": END} | changes))}


def judged(changes: dict[str, Any], before: dict[str, Any] | None = None, *, other: bool) -> Judgement:
    """Compare two curves of equal machines, or of machines that round differently."""
    sides = [lambda content, more=more: content["evidence"]["learn"].update(more) for more in (before or {}, changes)]
    return compare(whole(sides[0]), (rounded if other else whole)(sides[1]), throughput=False)


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("part", "event", "code"),
    [
        ("weights", "evaluation", "evaluation"),
        ("moments", "evaluation", "optimizer"),
        ("weights", "checkpoint", "optimizer"),
        ("moments", "checkpoint", "optimizer"),
        ("weights", "processes", "optimizer"),
        ("gradients", "processes", "gradient"),
        ("masks", "step", "rng"),
    ],
)
def test_a_curve_that_shows_its_own_state_to_be_wrong_is_a_drift_on_any_machine(
    part: str, event: str, code: str, *, other: bool
) -> None:
    found = [{"step": step, "rank": 1, "part": part, "event": event} for step in (6, 4)]
    judgement = judged({"inconsistent": found}, other=other)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", [code])
    assert (judgement.first_divergence.step, judgement.first_divergence.at) == (4, part)
    assert "process 1 of the candidate" in said(judgement.causes[0].why) or "in process 1" in said(
        judgement.causes[0].why
    )


def counted(*numbers: tuple[float | None, float | None]) -> Content:
    return {"evaluations": [END | {"step": step} for step in (4, 8)], "recounted": list(numbers)}


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("second", "codes"),
    [
        ((0.5, 0.5), []), ((0.5 + 1e-7, 0.5), []), ((0.51, 0.5), ["evaluation"]), ((0.5, 0.625), ["evaluation"]),
        ((None, None), ["evaluation"]),
    ],
)  # fmt: skip
def test_an_evaluation_that_its_own_logits_contradict_is_a_drift_on_any_machine(
    second: tuple[float | None, float | None], codes: list[str], *, other: bool
) -> None:
    """The past may have no such numbers."""
    for before in (counted((0.5, 0.5), (0.5, 0.5)), counted()):
        judgement = judged(counted((0.5, 0.5), second), before, other=other)
        assert [cause.code for cause in judgement.causes] == codes
        assert (judgement.verdict == "drift") is bool(codes)
        assert not codes or "after step 8" in said(judgement.causes[0].why)


def test_a_loss_function_that_differs_explains_the_loss_of_an_evaluation_and_no_count_of_answers() -> None:
    sides = [two(loss=loss) for loss in ("0x1p-1", "0x1p-2")]
    for share, codes in ((0.5, ["loss"]), (0.625, ["loss", "evaluation"])):
        judgement = judged(counted((0.5, 0.5), (0.7, share)) | sides[1], counted() | sides[0], other=True)
        assert [cause.code for cause in judgement.causes] == codes


@pytest.mark.parametrize(
    ("part", "number", "loss", "verdict"),
    [
        ("head", 1 + 5e-13, 0.5, "pass"), ("head", 1 + 5e-13, 0.5 + 1e-13, "pass"), ("head", 1 + 5e-12, 0.5, "drift"),
        ("head", 1.0, 0.5 + 1e-8, "drift"), ("inputs", 1.0, 0.5, "drift"), ("", 1.0, 0.5 + 1e-8, "drift"),
    ],
)  # fmt: skip
def test_an_evaluation_may_differ_by_the_rounding_of_fp64_alone(
    part: str, number: float, loss: float, verdict: str
) -> None:
    parts = {"inputs": "1" * 16, "labels": "2" * 16, "head": "3" * 16}
    before, after = parts, parts | ({part: "4" * 16} if part else {})
    found = [
        two(
            evaluated=list(each.items()), evaluation=END | {"loss": value, "logits_sha256": digit * 64},
            sketches=[["evaluated head", [size, *[0.0] * 7]]],
        )
        for each, value, size, digit in ((before, 0.5, 1.0, "a"), (after, loss, number, "b"))
    ]  # fmt: skip
    sides = [lambda content, each=each: content["evidence"]["learn"].update(each) for each in found]
    assert compare(whole(sides[0]), rounded(sides[1]), throughput=False).verdict == verdict


@pytest.mark.parametrize("other", [False, True])
def test_a_process_that_starts_from_weights_of_its_own_is_named_by_them(*, other: bool) -> None:
    found = [{"step": step, "rank": 1, "part": "weights", "event": "processes"} for step in (4, 0)]
    judgement = judged({"inconsistent": found}, other=other)
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["weights.init"])


@pytest.mark.parametrize("other", [False, True])
def test_a_process_whose_windows_differ_is_named_before_its_weights(*, other: bool) -> None:
    rank = {"rank": 1, "at": 3, "stage": "forward", "name": "head"}
    parted = [{"step": 4, "rank": 1, "part": "weights", "event": "processes"}]  # a consequence
    judgement = judged({"portable": two()["portable"] | {"ranks": [rank]}, "inconsistent": parted}, two(), other=other)
    assert [cause.code for cause in judgement.causes] == ["operator"]


def test_a_curve_without_windows_proves_nothing_behind_other_kernels() -> None:
    lost = {"portable": windows() | {"lost": "out of memory"}}
    whole_one, other_bits = two(), {"weights": [[0, "e" * 16], [8, "f" * 16]]}
    for left, right in ((whole_one, lost), (lost, whole_one)):
        assert judged(right | other_bits, left, other=True).verdict == "inconclusive"
        assert {judged(right, left, other=other).verdict for other in (True, False)} == {"pass"}  # equal bits
    assert judged(lost | other_bits, lost, other=True).verdict == "inconclusive"
