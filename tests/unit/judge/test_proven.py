"""Proofs of a record's own steps: what is beyond a limit drifts, whatever the reference shows."""

from __future__ import annotations

from typing import Any

import pytest

from plumbline.judge import compare, judge_round
from plumbline.judge.rungs.proven import unproven
from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Judgement
from tests.said import said

from .conftest import other_kernel, set_step
from .made_records import codes, whole
from .test_speed_windows import checked_speed

HONEST = {"stage": "forward", "name": "head", "kind": "Linear", "dtype": "float32", "terms": 16, "error": 4.0}


def proof(step: int = 0, draws: tuple[dict[str, Any], ...] = (), **error: Any) -> dict[str, Any]:
    return {"step": step, "errors": [HONEST, HONEST | error], "tensors": 2, "draws": list(draws)}


def record(part: str, *proofs: dict[str, Any]) -> LoadedRecord:
    return whole(checked_speed(), lambda content: content["evidence"][part].update(proofs=list(proofs)))


def judged(part: str, *proofs: dict[str, Any]) -> Judgement:
    """Compare a record with an honest one of a different machine."""
    return compare(record(part, *(proof(each["step"]) for each in proofs)), record(part, *proofs), throughput=False)


@pytest.mark.parametrize("part", ["probe", "speed", "learn"])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"error": 1e5}, "operator"),
        ({"error": None}, "operator"),
        ({"stage": "loss", "name": "loss", "error": 1e4}, "loss"),
        ({"stage": "gradient", "name": "head.weight", "error": 1e5}, "gradient"),
        ({"stage": "clipped", "name": "head.weight", "error": 1e5}, "gradient"),
        ({"stage": "optimizer", "name": "head.weight", "error": 50.0}, "optimizer"),
        ({"stage": "state", "name": "weights", "dtype": "", "error": None}, "optimizer"),
    ],
)
def test_a_tensor_that_is_not_what_its_definition_gives_is_a_drift(part: str, error: Any, code: str) -> None:
    found = judged(part, proof(), proof(3, **error))
    assert (found.verdict, codes(found)) == ("drift", [code])
    assert found.first_divergence is not None
    assert (found.first_divergence.step, found.first_divergence.at) == (3, error.get("name", "head"))


def test_errors_within_their_limits_pass() -> None:
    assert judged("speed", proof(), proof(5, error=20.0)).verdict == "pass"
    assert judged("learn", proof(), proof(5, dtype="bfloat16", error=4.9)).verdict == "pass"


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        ({"stage": "optimizer", "name": "head.weight"}, 8.0),
        ({"terms": 1}, 16.0 + 4.0),
        ({"dtype": "bfloat16", "terms": 1}, 5.0),
        ({"stage": "loss", "name": "loss", "dtype": "bfloat16", "terms": 1}, 3.0),
        ({"stage": "gradient", "name": "head.weight", "dtype": "bfloat16", "terms": 1}, 8.0),
    ],
)
def test_both_sides_of_each_limit(error: dict[str, Any], limit: float) -> None:
    for factor, verdict in ((0.99, "pass"), (1.01, "drift")):
        assert judged("speed", proof(**error, error=factor * limit)).verdict == verdict


def test_a_proof_shows_its_cause_and_a_format_is_left_to_an_experiment() -> None:
    """fp64 on both sides confirms a format, and shows what it hides."""

    def coarse(content: dict[str, Any]) -> None:
        content["evidence"]["probe"]["proofs"] = [proof(error=2.0**15)]
        content["fingerprint"]["mantissa_bits"] = {"probe.linear": 8}

    causes = []
    for made in (record("probe", proof(error=2.0**15)), whole(checked_speed(), coarse)):
        found = unproven(made.record, "probe")
        assert found is not None
        causes += [(suspicion.code, suspicion.shown) for suspicion in found.suspicions]
    assert causes == [("operator", True), ("precision", False)]


@pytest.mark.parametrize(
    ("given", "verdict"), [(1.0 + 5e-13, "pass"), (1.0 + 5e-12, "invalid"), (None, "inconclusive")], ids=str
)
def test_a_draw_of_the_round_is_answered(given: float | None, verdict: str) -> None:
    def drawn(number: float | None) -> LoadedRecord:
        def change(content: dict[str, Any]) -> None:
            content["round_id"] = "20261121-020000-abc"
            content["evidence"]["probe"]["portable"]["drawn"] = None if number is None else [number, *[0.0] * 7]

        return whole(checked_speed(), change)

    found = compare(drawn(1.0), drawn(given), throughput=False)
    assert found.verdict == verdict
    assert ("record.draw" in {finding.check for finding in found.findings}) is (verdict != "pass")


def test_a_limit_grows_with_the_number_of_terms_and_not_with_a_format_that_nobody_asked_for() -> None:
    assert judged("speed", proof(error=60.0)).verdict == "drift"
    assert judged("speed", proof(error=60.0, terms=1024)).verdict == "pass"
    assert judged("speed", proof(error=6.0, dtype="bfloat16")).verdict == "drift"


def test_the_same_fault_on_both_sides_is_no_pass() -> None:
    wrong = record("speed", proof(error=1e5))
    assert compare(wrong, wrong, throughput=False).verdict == "drift"
    other = record("speed", proof())
    assert compare(other, wrong, throughput=False).verdict == "drift"
    assert compare(wrong, other, throughput=False).verdict == "pass"  # the wrong side alone is accused


def test_dropout_that_keeps_too_many_elements_is_a_drift() -> None:
    draws = {"name": "head", "rate": 0.1, "calls": 1, "elements": 100_000, "kept": 90_100}
    honest = record("speed", proof(draws=(draws,)))
    assert compare(honest, honest, throughput=False).verdict == "pass"
    found = compare(honest, record("speed", proof(draws=(draws | {"kept": 91_000},))), throughput=False)
    assert (found.verdict, codes(found)) == ("drift", ["rng"])


def test_dropout_that_is_not_called_is_a_drift_on_any_machine() -> None:
    draws = {"name": "head", "rate": 0.1, "calls": 2, "elements": 100_000, "kept": 90_000}
    found = compare(record("speed", proof(draws=(draws,))), record("speed", proof()), throughput=False)
    assert (found.verdict, codes(found)) == ("drift", ["rng"])
    # A compiled model's modules are not seen, and count no call; its plain modules prove a later step.
    compiled = {"step": 0, "errors": [HONEST | {"stage": "optimizer", "name": "head.weight"}], "tensors": 1}
    kernels = [{"stage": "gradient", "name": "head.weight", "error": 4e-3, "eager": 4e-3}]
    ran = whole(
        checked_speed(kernels=kernels),
        lambda content: content["evidence"]["speed"].update(proofs=[compiled, proof(9), proof(10)]),
    )
    plain = record("speed", proof(draws=(draws,), stage="optimizer", name="head.weight"), proof(9))
    assert [compare(*pair, throughput=False).verdict for pair in ((ran, plain), (plain, ran))] == ["pass", "pass"]
    # Another night draws other steps.
    other = record("speed", proof(5, draws=(draws | {"calls": 3},)))
    assert compare(record("speed", proof(draws=(draws,))), other, throughput=False).verdict == "pass"


@pytest.mark.parametrize("part", ["probe", "speed", "learn"])
def test_a_record_with_fewer_proofs_than_its_reference_is_no_pass(part: str) -> None:
    found = compare(record(part, proof(), proof(3)), record(part, proof()), throughput=False)
    assert found.verdict == "inconclusive"
    assert "proof.steps" in {finding.check for finding in found.findings}
    assert compare(record(part, proof()), record(part, proof(), proof(3)), throughput=False).verdict == "pass"


@pytest.mark.parametrize(("part", "known", "found", "verdict"), [
    ("probe", 3, 2, "pass"), ("speed", 4, 3, "inconclusive"), ("speed", 5, 4, "pass"),
])  # fmt: skip
def test_a_record_needs_the_proofs_that_its_night_draws_and_of_its_measured_steps_one_more(
    part: str, known: int, found: int, verdict: str
) -> None:
    """The reference's night may have drawn more."""
    sides = [record(part, *map(proof, range(num))) for num in (known, found)]
    assert compare(*sides, throughput=False).verdict == verdict


def test_fewer_proofs_do_not_hide_what_a_record_shows() -> None:
    """A model that was left in fp64 has no modules that fp64 could prove, and its formats show it."""

    def slower(content: dict[str, Any]) -> None:
        content["evidence"]["probe"]["proofs"] = [proof()]
        set_step(content["evidence"]["probe"], 1, {"learning_rate": 1e-6})

    found = compare(record("probe", proof(), proof(3)), whole(checked_speed(), slower), throughput=False)
    assert (found.verdict, codes(found)) == ("drift", ["schedule"])
    assert "proof.steps" in {finding.check for finding in found.findings}


@pytest.mark.parametrize("part", ["probe", "speed", "learn"])
def test_a_proof_that_lost_all_modules_is_no_pass_beside_a_reference_that_has_them(part: str) -> None:
    update = HONEST | {"stage": "optimizer", "name": "head.weight"}
    whole_proof = {"step": 0, "errors": [HONEST, update], "tensors": 2, "draws": []}
    without = whole_proof | {"errors": [update], "lost": "head: RuntimeError: no form in fp64"}
    found = compare(record(part, whole_proof), record(part, without), throughput=False)
    assert found.verdict == "inconclusive"
    assert compare(record(part, without), record(part, whole_proof), throughput=False).verdict == "pass"


@pytest.mark.parametrize("part", ["probe", "speed", "learn"])
def test_what_a_proof_could_not_compare_is_said_once_for_each_reason(part: str) -> None:
    lost = {"lost": "head: RuntimeError: no form in fp64"}
    own = record(part, proof(), proof(3) | lost, proof(5) | lost)
    found = compare(record(part, proof(), proof(3), proof(5)), own, throughput=False)
    assert found.verdict == "pass"
    notes = [said(note.text) for note in found.notes if "head: RuntimeError" in said(note.text)]
    assert notes == [f"{part} of the candidate has no proof of some tensors at step 3: {lost['lost']}"]
    assert len([note for note in compare(own, own, throughput=False).notes if "proof of some" in said(note.text)]) == 2


@pytest.mark.parametrize("part", ["probe", "speed", "learn"])
def test_a_part_without_any_proven_tensor_is_no_pass_between_kernels_unless_the_reference_lost_as_much(
    part: str,
) -> None:
    def without(why: str, **fingerprint: Any) -> LoadedRecord:
        is_short = "MemoryError" in why
        proofs = {"proofs": [{"step": 0, "errors": [], "tensors": 0, "lost": why, "lacks_memory": is_short}]}
        changes = [checked_speed(), lambda content: content["evidence"][part].update(proofs)]
        return whole(*changes, fingerprint=fingerprint)

    shards, memory = "its weights are sharded", "model: MemoryError: no memory"
    reference = without(shards)
    assert compare(reference, without(shards, **other_kernel()), throughput=False).verdict == "pass"
    assert compare(reference, without(memory), throughput=False).verdict == "pass"  # equal bits are due, and are there
    for side in (reference, without(memory)):  # a shortage is no property of the model that both sides share
        found = compare(side, without(memory, **other_kernel()), throughput=False)
        assert found.verdict == "inconclusive"
    (finding,) = [finding for finding in found.findings if finding.outcome == "inconclusive"]
    assert memory in said(finding.detail)


def test_a_reference_that_its_own_proof_shows_to_be_wrong_accuses_no_other_platform() -> None:
    """Its logits differ from the others', and no platform has a baseline."""

    def platform(name: str, **changes: Any) -> LoadedRecord:
        return whole(
            lambda content: content["evidence"]["probe"].update(proofs=[proof(**changes)]),
            lambda content: content.update(record_id=name, platform=name),
            noise={"layer.linear": 1e-3} if changes else {},
            fingerprint=other_kernel() if changes else {},
        )

    records = {"a": platform("a", error=1e5), "b": platform("b"), "c": platform("c")}
    results = judge_round(records, "a", {})
    assert {name: result.verdict for name, result in results.items()} == {"a": "drift", "b": "pass", "c": "pass"}
