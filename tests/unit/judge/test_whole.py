"""Completeness checks: missing evidence is inconclusive or invalid, never equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plumbline.judge import compare
from plumbline.judge.whole import stands_alone
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_array
from plumbline.schema.record import RunRecord
from tests.said import said

from .conftest import EVALUATION_ROWS, make_record, other_kernel, set_all
from .made_records import LEARN, Content, edit, evaluation, keep_taps, probe, whole


@pytest.mark.parametrize("stage", ["forward", "gradient"])
def test_a_tensor_that_only_one_of_two_sketched_is_missing(stage: str) -> None:
    """By itself such a record is whole: only the other one tells that there is more."""
    name = {"forward": "layer.norm", "gradient": "embed.weight"}[stage]

    def change(content: Content) -> None:
        keep_taps(content, lambda tap: (tap["step"], tap["stage"], tap["name"]) != (2, stage, name))

    for pair, who in (((whole(), whole(change)), "candidate"), ((whole(change), whole()), "reference")):
        judgement = compare(*pair)
        assert judgement.verdict == "invalid"
        assert said(judgement.findings[0].detail).startswith(f"the {who} has no tensor of {stage} at {name} in step 2")


@pytest.mark.parametrize("side", ["candidate", "reference"])
@pytest.mark.parametrize(("steps", "verdict"), [((0, 2, 5), "drift"), ((2,), "invalid")])
def test_a_module_that_one_run_never_calls_is_no_lost_tap(side: str, steps: tuple[int, ...], verdict: str) -> None:
    """The drift shows in the outputs of later modules."""

    def change(content: Content) -> None:
        lost = {(step, "forward", "layer.linear") for step in steps}
        keep_taps(content, lambda tap: (tap["step"], tap["stage"], tap["name"]) not in lost)

    sides = {"reference": make_record(), "candidate": make_record(noise={"layer.norm": 1e-3})}
    judgement = compare(*(sides | {side: edit(sides[side], change)}).values())
    assert judgement.verdict == verdict
    if verdict == "drift":
        assert [cause.code for cause in judgement.causes] == ["operator"]


def test_a_module_without_taps_is_lost_where_all_logits_are_equal() -> None:
    def change(content: Content) -> None:
        keep_taps(content, lambda tap: (tap["stage"], tap["name"]) != ("forward", "layer.linear"))

    assert compare(whole(), whole(change)).verdict == "invalid"


def test_taps_of_a_module_that_is_called_again_may_differ() -> None:
    """Activation checkpointing calls each module once more in the backward pass: a benign difference."""

    def twice(content: Content) -> None:
        probe(content)["taps"] = [*probe(content)["taps"], {**probe(content)["taps"][0], "name": "embed#1"}]
        sketches = content["arrays"]["sketches"]["sketch"]
        content["arrays"]["sketches"] = {"sketch": np.concatenate([sketches, sketches[:1]])}

    assert compare(whole(), whole(twice)).verdict == "pass"
    assert compare(whole(twice), whole()).verdict == "pass"


def fewer(num_rows: int, *, probe_too: bool = False) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        evaluations = [evaluation(step, num_rows) for step in (4, 8)]
        content["evidence"]["learn"] |= {"evaluations": evaluations, "weights": [[0, "e" * 16], [8, "e" * 16]]}
        if probe_too:
            arrays = {name: rows[:num_rows] for name, rows in content["arrays"]["evaluation"].items()}
            content["arrays"]["evaluation"] = arrays
            digests = {"rows_sha256": "row_ids", "predictions_sha256": "predictions", "logits_sha256": "logits"}
            probe(content)["evaluation"] |= {"num_rows": num_rows} | {
                name: digest_array(arrays[part]) for name, part in digests.items()
            }

    return change


@pytest.mark.parametrize("rows", [1, EVALUATION_ROWS - 1, EVALUATION_ROWS + 1])
def test_a_curve_that_evaluates_fewer_or_more_rows_is_a_drift_of_the_evaluation(rows: int) -> None:
    """As one that leaves out a last batch: the record is complete, and its evaluation is wrong."""
    found = [evaluation(step, rows) for step in (4, 8)]
    judgement = compare(whole(), whole(lambda content: content["evidence"]["learn"].update(evaluations=found)))
    assert (judgement.verdict, [cause.code for cause in judgement.causes]) == ("drift", ["evaluation"])


def test_an_evaluation_of_one_row_is_no_pass() -> None:
    assert compare(whole(fewer(1)), whole(fewer(1))).verdict == "invalid"
    assert not stands_alone(whole(fewer(1)))


def test_a_split_that_is_smaller_than_asked_is_evaluated_whole() -> None:
    def small(content: Content) -> None:
        spec = content["spec"] | {"learn": LEARN | {"evaluation_rows": 1000}}
        spec["probe"] = {**spec["probe"], "evaluation_rows": 1000}
        content["spec"] = spec
        content["spec_sha256"] = whole().record.spec.replace(**spec).digest

    assert compare(whole(small), whole(small)).verdict == "pass"


def test_fewer_rows_in_both_evaluations_are_a_drift_of_the_evaluation() -> None:
    judgement = compare(whole(), whole(fewer(EVALUATION_ROWS - 1, probe_too=True)))
    assert judgement.verdict == "drift"
    assert [cause.code for cause in judgement.causes] == ["evaluation"]


@pytest.mark.parametrize("who", [0, 1])
def test_lost_windows_cost_no_verdict_where_bits_are_equal_and_the_proof_where_they_differ(
    who: int,
) -> None:
    def pair(**changes: Any) -> list[LoadedRecord]:
        sides = []
        for place, made in enumerate((make_record(has_windows=True), make_record(has_windows=True, **changes))):
            content = made.record.model_dump()
            content["spec"] = {**content["spec"], "probe": {**content["spec"]["probe"], "portable_steps": 2}}
            content["spec_sha256"] = made.record.spec.replace(**content["spec"]).digest
            if place == who:
                probe(content)["portable"] = {"windows": [], "lost": "out of memory"}
            sides.append(LoadedRecord(RunRecord.model_validate(content), made.folder, made.arrays))
        return sides

    assert compare(*pair()).verdict == "pass"
    rounded = compare(*pair(noise={"layer.linear": 3e-7}, fingerprint=other_kernel()))
    assert rounded.verdict == "inconclusive"
    assert any("out of memory" in said(finding.detail) for finding in rounded.findings)
    assert compare(*pair(noise={"layer.norm": 1e-2}, fingerprint=other_kernel())).verdict == "inconclusive"


def test_a_parameter_that_gets_no_gradient_in_one_of_the_two_is_a_drift_of_the_gradient() -> None:
    """Where the digests of all gradients differ, nothing was lost on the way to the record."""

    def without(content: Content) -> None:
        keep_taps(content, lambda tap: (tap["stage"], tap["name"]) != ("gradient", "head.weight"))
        set_all(probe(content), gradients="f" * 16)

    for pair in ((whole(), whole(without)), (whole(without), whole())):
        judgement = compare(*pair)
        assert judgement.verdict == "drift"
        assert [cause.code for cause in judgement.causes] == ["gradient"]
        assert judgement.first_divergence is not None
        assert judgement.first_divergence.at == "head.weight"
