"""The doctor's selfcheck of a worker: what counts as an answer of the trainer's process."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from plumbline.environments.selfcheck import check_trainer


@pytest.mark.parametrize(
    ("output", "error", "verdict", "at"),
    [
        ('{"verdict": "pass"}', "", "pass", ""),
        ('{"verdict": "drift", "at": "the loss of step 0"}', "", "drift", "the loss of step 0"),
        ('{"verdict": "fine"}', "plumbline: no torch here", "", "no torch here"),
        ("", "", "", "no output"),
    ],
)
def test_only_a_document_of_the_trainer_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, output: str, error: str, verdict: str, at: str
) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, output, error)

    monkeypatch.setattr(subprocess, "run", run)
    _, selfcheck, trainer = check_trainer()
    assert (selfcheck.verdict if selfcheck else "", selfcheck.at if selfcheck else trainer) == (verdict, at)


def test_a_trainer_that_gives_no_answer_in_time_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("x", 90)

    monkeypatch.setattr(subprocess, "run", run)
    _, selfcheck, trainer = check_trainer()
    assert (selfcheck.verdict if selfcheck else "", trainer) == ("unknown", "")
