"""The doctor's selfcheck of a worker: what counts as an answer of the trainer's process."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from plumbline.doctor.place import check_stack


@pytest.mark.parametrize(
    ("output", "error", "verdict", "at"),
    [
        ('{"verdict": "pass"}', "", "pass", ""),
        ('{"verdict": "drift", "at": "the loss of step 0"}', "", "drift", "the loss of step 0"),
        ('{"verdict": "fine"}', "plumbline: no torch here", "unknown", "the trainer failed: plumbline: no torch here"),
        ("", "", "unknown", "the trainer failed: no output"),
    ],
)
def test_only_a_document_of_the_trainer_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, output: str, error: str, verdict: str, at: str
) -> None:
    def run(command: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(command, 0, output, error)

    monkeypatch.setattr(subprocess, "run", run)
    assert (check_stack().verdict, check_stack().at) == (verdict, at)


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("x", 90), OSError(2, "no such file")])
def test_a_trainer_that_gives_no_answer_is_unknown(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(subprocess, "run", run)
    assert check_stack().verdict == "unknown"
