"""A trainer's own output in the log of its run: bounded, and without secrets."""

from __future__ import annotations

import logging

import pytest

from plumbline.tasks.events import ProgressReporter, TrainerOutput


@pytest.fixture
def logger(caplog: pytest.LogCaptureFixture) -> logging.Logger:
    caplog.set_level(logging.INFO)
    return logging.getLogger("tests.trainer_output")


def test_the_first_lines_and_the_last_are_logged(logger: logging.Logger, caplog: pytest.LogCaptureFixture) -> None:
    output = TrainerOutput(logger)
    for number in range(100):
        output.add(f"warning {number}")
    assert caplog.messages == [f"warning {number}" for number in range(100)]
    for number in range(100, 5000):
        output.add(f"warning {number}")
    output.add("RuntimeError: " + "x" * 5000)
    assert len(caplog.messages) == 100
    output.close()
    output.close()
    assert caplog.messages[100] == "(4801 lines left out)"
    assert caplog.messages[101:200] == [f"warning {number}" for number in range(4901, 5000)]
    assert len(caplog.messages[200]) == 1000
    assert len(caplog.messages) == 201


def test_secrets_are_not_logged(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "c2VjcmV0LW9mLXRoZS10ZXN0")
    output = TrainerOutput(logger)
    output.add("key c2VjcmV0LW9mLXRoZS10ZXN0 at https://me:hidden@host/x?sv=1&sig=abcd%3D&X-Amz-Signature=ef [/bold]")
    (line,) = caplog.messages
    assert line == "key *** at https://***@host/x?sv=1&sig=***&X-Amz-Signature=*** [ /bold]"


def test_the_line_that_torchrun_draws_is_not_the_last_word(logger: logging.Logger) -> None:
    reporter = ProgressReporter(logger)
    for line in ("CUDA error: invalid device ordinal", "=" * 60):
        reporter.on_progress({"event": "said", "line": line})
    assert reporter.last_line == "CUDA error: invalid device ordinal"
