"""An image as the candidate: which references are accepted, which trainings are asked for, and what they mean."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

import pytest

from plumbline.flows.commands import upgrade as command
from plumbline.night.rounds.gathered import Absence
from plumbline.night.rounds.plan import Round
from plumbline.records import LoadedRecord
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.suite import Gates, Suite
from plumbline.upgrade.image_answer import image_answer, wanted
from plumbline.upgrade.images import ImageTrainings
from plumbline.upgrade.report import html_report
from plumbline.upgrade.request import Candidate, check_image, read_image
from tests.unit.judge.conftest import make_record, spec
from tests.unit.judge.test_speed import speed

DIGEST = "c" * 64
IMAGE = f"registry.example.com/team/plumbline@sha256:{DIGEST}"
NEW = {"torch": "2.14.0"}


@pytest.mark.parametrize(
    "reference",
    [
        IMAGE,
        f"plumbline@sha256:{DIGEST}",
        f"localhost:5000/a/b_c:2026-11@sha256:{DIGEST}",
        f"a.b/c-d.e@sha256:{DIGEST}",
    ],
)
def test_an_image_pinned_by_its_digest_is_accepted(reference: str) -> None:
    assert check_image(reference, key="--image") == reference
    assert read_image(Candidate(image=reference)) == reference
    assert Candidate(image=reference).is_given


@pytest.mark.parametrize(
    "reference",
    [
        "plumbline", "plumbline:latest", f"plumbline@sha256:{'c' * 63}", f"plumbline@sha512:{DIGEST}",
        f"registry/Team/plumbline@sha256:{DIGEST}", f"https://registry/plumbline@sha256:{DIGEST}",
        f"a b@sha256:{DIGEST}", f"{IMAGE}\n", f"--privileged@sha256:{DIGEST}", f"/plumbline@sha256:{DIGEST}",
    ],
)  # fmt: skip
def test_what_may_be_a_different_image_tomorrow_is_refused_in_one_line(reference: str) -> None:
    with pytest.raises(ConfigurationError, match="is not an image pinned by its digest") as caught:
        read_image(Candidate(image=reference))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("beside", [{"text": "numpy==2\n"}, {"url": "https://x/y"}, {"sha256": "0" * 64}])
def test_a_lock_beside_an_image_is_refused(beside: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="either a lock or an image"):
        read_image(Candidate(image=IMAGE, **beside))


def parsed(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    return parser.parse_args(["upgrade", "suite.toml", *options])


def test_the_command_line_refuses_before_anything_is_read() -> None:
    for options, words in [
        (["--image", IMAGE], "--image: an image trains in a work pool, not on this machine"),
        (["--image", "plumbline:latest", "--api"], "--image: 'plumbline:latest' is not an image pinned by its digest"),
    ]:
        args = parsed(*options)
        with pytest.raises(ConfigurationError, match=words):
            args.run(args)
    for options in (["--image", IMAGE, "--candidate", "lock.txt"], []):
        with pytest.raises(SystemExit):
            parsed(*options)


def test_a_different_image_may_have_a_different_lock() -> None:
    store = {"data": "file:///data", "outbox": "file:///outbox", "work_pool": "pool", "lock": "d" * 64}
    suite = Suite.model_validate({
        "name": "nightly", "store": "file:///central", "reference": "aws", "platforms": {"aws": store},
        "datasets": {"reviews": {"grammar_seed": 1}},
        "workloads": {"unit": {"model": "tiny", "data": "reviews", "seed": 7, "batch_size": 8, "probe": {}}},
    })  # fmt: skip
    round_ = Round("20261123-020000-a", suite, {"unit": spec()})
    own, candidate = wanted(trainings(), 10)
    assert [round_.order(one, 0).expected.lock_sha256 for one in (own, candidate)] == ["d" * 64, ""]
    assert round_.order(own, 0).record_id != round_.order(candidate, 0).record_id


def trainings(*, has_speed: bool = False) -> ImageTrainings:
    return ImageTrainings("aws", "unit", IMAGE, Gates(), has_numerics=True, has_speed=has_speed)


def failed(message: str) -> LoadedRecord:
    record = make_record(fingerprint={"container_image": IMAGE, "packages": NEW})
    exit_ = {"status": "failed", "code": "non-finite", "message": message, "part": "probe", "step": 3}
    return replace(record, record=record.record.replace(exit=exit_))


def timed(record: LoadedRecord, slower: float) -> LoadedRecord:
    evidence = record.record.evidence.replace(speed=speed(slower=slower).to_json())
    return replace(record, record=record.record.replace(evidence=evidence))


def of_image(image: str, **changes: object) -> LoadedRecord:
    about = {"container_image": image} if image else {}
    return make_record(fingerprint={**about, **({"packages": NEW} if image else {})}, **changes)


def play(state: ImageTrainings, answers: dict[str, LoadedRecord], most: int = 50) -> tuple[ImageTrainings, list[str]]:
    """Answer every training that is asked for by its title's beginning."""
    names = []
    while asked := wanted(state, most):
        for one in asked:
            names.append(one.title)
            found = answers.get(one.title) or answers[one.title.partition(",")[0]]
            state = replace(state, records={**state.records, one: found})
    return state, names


def test_equal_trainings_pass_and_the_packages_are_listed() -> None:
    state, names = play(trainings(), {"own image": of_image(""), "candidate image": of_image(IMAGE)})
    answer = image_answer(state)
    assert names == ["own image", "candidate image"]
    assert (answer.verdict, answer.image, answer.candidate_sha256) == ("pass", IMAGE, DIGEST)
    assert answer.sentences[:3] == (
        "training is the same in the candidate image", "bisecting is off: an image is one change",
        "packages that differ: torch 2.13.0 → 2.14.0",
    )  # fmt: skip
    assert html_report(answer).count("bisecting is off") == 1


def test_a_drift_counts_once_the_own_image_agrees_with_itself() -> None:
    drifting = of_image(IMAGE, rates=[0.2] * 6)
    state, names = play(trainings(), {"own image": of_image(""), "candidate image": drifting})
    assert names == ["own image", "candidate image", "own image, again"]
    answer = image_answer(state)
    assert (answer.verdict, answer.culprits) == ("drift", ())
    assert answer.sentences[0].startswith("the candidate image changes schedule: first at step 0")
    assert answer.sentences[0].endswith("confirmed: the platform's own image agrees with itself")
    again = {"own image, again": of_image("", rates=[0.3] * 6)}
    unsteady, _ = play(trainings(), {"own image": of_image(""), "candidate image": drifting, **again})
    assert image_answer(unsteady).verdict == "inconclusive"


def test_an_image_that_cannot_train_is_tried_twice() -> None:
    answers = {"own image": of_image(""), "candidate image": failed("the loss is NaN")}
    state, names = play(trainings(has_speed=True), answers)
    assert names == ["own image", "candidate image", "candidate image, again"]
    answer = image_answer(state)
    assert answer.verdict == "drift"
    assert "the candidate image cannot train: probe step 3: the loss is NaN; confirmed" in answer.sentences[0]
    lucky, _ = play(trainings(), {**answers, "candidate image, again": of_image(IMAGE)})
    assert image_answer(lucky).verdict == "inconclusive"


def test_speed_is_compared_in_pairs_of_alternating_order() -> None:
    own, slow = timed(of_image(""), 0.0), timed(of_image(IMAGE), 0.1)
    state, names = play(trainings(has_speed=True), {"own image": own, "candidate image": slow})
    assert names == [
        "own image", "candidate image", "candidate image, speed 1", "own image, speed 1", "own image, speed 2",
        "candidate image, speed 2",
    ]  # fmt: skip
    answer = image_answer(state)
    assert answer.verdict == "drift"
    assert answer.speed is not None
    assert answer.speed.outcome == "slower"
    assert math.isclose(answer.speed.drop, 1 - 1 / 1.1)
    equal, _ = play(trainings(has_speed=True), {"own image": own, "candidate image": timed(of_image(IMAGE), 0.0)})
    assert image_answer(equal).verdict == "pass"


def test_pairs_end_at_the_budget_and_at_a_lost_training() -> None:
    answers = {"own image": timed(of_image(""), 0.0), "candidate image": timed(of_image(IMAGE), 0.0)}
    answers |= {f"candidate image, speed {n}": timed(of_image(IMAGE), slower) for n, slower in ((1, 0.3), (2, -0.2))}
    state, names = play(trainings(has_speed=True), answers, most=8)
    assert len(names) == 6
    assert "3 pairs do not decide" in image_answer(state).sentences[0]
    assert image_answer(state).verdict == "inconclusive"
    *rest, last = state.records
    lost = replace(state, records={one: state.records[one] for one in rest}, absent={last: Absence("no worker")})
    assert wanted(lost, 50) == ()
    assert image_answer(lost).verdict == "inconclusive"


def test_no_record_and_a_foreign_image_are_no_pass() -> None:
    own, candidate = wanted(trainings(), 10)
    lost = replace(trainings(), records={own: of_image("")}, absent={candidate: Absence("ErrImagePull")})
    assert wanted(lost, 10) == ()
    assert (image_answer(lost).verdict, "ErrImagePull" in image_answer(lost).sentences[0]) == ("inconclusive", True)
    broken = replace(lost, absent={candidate: Absence("corrupt", broken=True)})
    assert image_answer(broken).verdict == "invalid"
    state, names = play(trainings(has_speed=True), {"own image": of_image(""), "candidate image": of_image("")})
    assert len(names) == 2
    assert (image_answer(state).verdict, "unnamed image" in image_answer(state).sentences[0]) == ("inconclusive", True)
    assert wanted(trainings(), 1) == ()
    assert image_answer(trainings()).verdict == "inconclusive"
