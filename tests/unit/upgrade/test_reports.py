"""The answer as text, HTML, JUnit, CI summary and comment: the culprit stands in each, and no markup of others."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from plumbline.environments.changes import Failure
from plumbline.upgrade import UpgradeAnswer
from plumbline.upgrade.answer import UNTIMED, Speed, TrialLine
from plumbline.upgrade.comparison import PairedDrop
from plumbline.upgrade.report import (
    comment_report,
    constraint_lines,
    culprit_of,
    html_report,
    junit_report,
    summary_report,
    text_lines,
)
from tests.unit.upgrade.conftest import change, drift


def parse(text):
    return ET.fromstring(text)  # noqa: S314 - our own document


CULPRIT = culprit_of(
    "numerics", [change("transformers", "5.21.1", "5.23.0")], judgement=drift(),
    links={"Changelog": "https://x/<script>alert(1)</script>"},
)  # fmt: skip
ANSWER = UpgradeAnswer(
    verdict="drift", culprits=(CULPRIT,), constraints=constraint_lines([CULPRIT]),
    changes=(change("transformers", "5.21.1", "5.23.0"), change("b", "1", "2")),
    trials=(TrialLine(name="trial-001", part="numerics", changes=("a 1 → 2",), outcome="drift", seconds=3.0),),
    speed=Speed(outcome="as fast", drop=0.001, low=-0.01, high=0.012, num_pairs=3), not_opened=("boto3",),
)  # fmt: skip
SENTENCE = (
    "transformers 5.21.1 → 5.23.0 changes operator: first at step 0, encoder.layer.0.intermediate; "
    "confirmed: alone it drifts, all others without it pass"
)


def test_the_sentence_and_the_constraint():
    assert ANSWER.sentences == (SENTENCE,)
    assert ANSWER.constraints == ("transformers==5.21.1",)
    assert ANSWER.document()["exit_code"] == 1


@pytest.mark.parametrize("report", [html_report, summary_report, comment_report])
def test_every_report_names_the_culprit_and_escapes_what_packages_say(report):
    failures = [Failure(stage="import", message="<script>alert(1)</script>")]
    text = report(ANSWER.replace(culprits=(CULPRIT, culprit_of("cannot-train", [change("b")], failures=failures))))
    assert "transformers 5.21.1 → 5.23.0 changes operator" in text
    assert "transformers==5.21.1" in text
    outside_of_code = text if report is html_report else re.sub("`[^`]*`", "", text)
    assert "<script>alert" not in outside_of_code


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (-2.62, 0.459, "3.6 times as fast to 45.9% slower"), (0.02, 0.086, "2.0% to 8.6% slower"),
        (-0.05, -0.01, "1.0% to 5.0% faster"), (-0.01, 0.012, "1.0% faster to 1.2% slower"),
    ],
)  # fmt: skip
def test_a_range_names_both_directions_and_the_page_draws_its_pairs(low, high, words):
    speed = Speed(outcome="undecided", drop=0.0, low=low, high=high, num_pairs=3, pairs=(0.12, -0.4, 0.05))
    answer = UpgradeAnswer(verdict="inconclusive", notes=("3 pairs do not decide",), speed=speed)
    assert f"throughput: undecided ({words}, 3 pairs)" in "\n".join(text_lines(answer))
    page = html_report(answer)
    assert all(f"<title>pair {pair}</title>" in page for pair in ("1: 12.0% slower", "2: 40.0% faster"))
    assert "run the upgrade again on a machine without other load: this answer is no pass" in page


@pytest.mark.parametrize("report", [html_report, summary_report])
def test_a_trial_of_speed_is_listed_with_what_it_measured(report):
    line = TrialLine(
        name="trial-002", part="speed", changes=(), outcome="same", measured="4 pairs, 7.1% slower", seconds=3.0
    )
    assert "4 pairs, 7.1% slower" in report(ANSWER.replace(trials=(line,)))


def test_a_drift_without_a_culprit_fails_and_says_what_is_known():
    known = "training is 8.6% slower with the candidate; 40 pairs do not decide which change it is"
    answer = UpgradeAnswer(verdict="drift", notes=(known,))
    root = parse(junit_report(answer))
    assert (root.get("failures"), root.get("errors")) == ("1", "0")
    assert root.find("testsuite/testcase/failure").get("message") == known
    assert "8.6% slower with the candidate</h1>" in html_report(answer)
    assert all(known in report(answer) for report in (summary_report, comment_report))


def test_junit_counts_a_culprit_as_a_failure_and_the_unknown_as_an_error():
    root = parse(junit_report(ANSWER))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "1", "0")
    assert root.find("testsuite/testcase/failure").get("message") == SENTENCE
    unknown = parse(junit_report(UpgradeAnswer(verdict="inconclusive", notes=("no answer",))))
    assert unknown.get("errors") == "1"
    assert parse(junit_report(UpgradeAnswer(verdict="pass", changes=(change("a"),)))).get("failures") == "0"


@pytest.mark.parametrize("report", [html_report, summary_report, comment_report])
def test_a_constraint_of_many_hashes_is_whole(report):
    """numpy's releases have 70 archives; pip refuses half a hash."""
    line = f"kern==1.0 {' '.join(f'--hash=sha256:{number:064x}' for number in range(100))}"
    assert line in report(ANSWER.replace(constraints=(line,)))


@pytest.mark.parametrize(
    "report",
    [lambda answer: "\n".join(text_lines(answer)), summary_report, html_report],
    ids=["text", "summary", "html"],
)
@pytest.mark.parametrize("culprits", [(), (CULPRIT,)])
def test_a_report_says_each_note_once(report, culprits):
    notes = (UNTIMED, "a.txt: --extra: not used")
    answer = UpgradeAnswer(verdict="pass", changes=(change("a"),), notes=notes, culprits=culprits)
    assert [report(answer).count(note) for note in notes] == [1, 1]


def test_text_says_what_was_not_opened():
    lines = list(text_lines(ANSWER))
    assert lines[0] == "drift"
    assert any("training opens no file of: boto3" in line for line in lines)


def test_other_effects_in_words():
    boom = Failure(stage="import", message="Traceback\nImportError: gone")
    broken = culprit_of("cannot-train", [change("a")], failures=[boom])
    assert broken.sentence.startswith("a 1.0 → 2.0 cannot train: ImportError: gone (hint: keep a==1.0 until")
    known = Failure(stage="import", library="filelock", exception="ImportError", message="cannot import name 'gone'")
    named = culprit_of("cannot-train", [change("filelock")], failures=[known])
    assert named.sentence == (
        "filelock 1.0 → 2.0 cannot train: filelock raises ImportError: cannot import name 'gone' (hint: keep "
        "filelock==1.0 until a release works with the others); confirmed: alone it fails, all others without it pass"
    )
    assert "(hint" not in culprit_of("cannot-train", [change("a", "1.0", None)], failures=[boom]).sentence
    drop = PairedDrop("slower", drop=0.271, low=0.08, high=0.42, num_pairs=3)
    slow = culprit_of("speed", [change("a")], drop=drop, others="pass")
    assert "at least 8.0% of the throughput is lost (3 pairs)" in slow.sentence
    assert "27.1%" not in slow.sentence
    pair = culprit_of("numerics", [change("a"), change("b")], judgement=drift())
    assert pair.sentence.startswith("a 1.0 → 2.0 and b 1.0 → 2.0 together change")
    assert culprit_of("numerics", [change("a")], judgement=drift(), is_minimal=False).sure == "likely"
    assert culprit_of("numerics", [change("a")], judgement=drift(), others="not judged").sure == "likely"
    assert constraint_lines([culprit_of("numerics", [change("a", None)], judgement=drift())]) == ("a!=2.0",)
