"""Start of the trainer's process."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.launch import run_training

INTERPRETER = """#!/bin/sh
printf '%s ' "$@" > "$0.arguments"
printf '%s' "$PLUMBLINE_NONCE" > "$0.nonce"
"""


@pytest.mark.parametrize("nonce", ["0123456789abcdef", ""])
def test_a_nonce_is_in_no_argument_which_other_users_of_the_machine_can_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nonce: str
) -> None:
    monkeypatch.setenv("PLUMBLINE_NONCE", "of-a-different-order")
    python = tmp_path / "python"
    python.write_text(INTERPRETER)
    python.chmod(0o755)
    run_training(
        tmp_path / "spec.json", tmp_path / "out", data=None, cache=tmp_path, platform="here", record_id="r",
        nonce=nonce, python=python,
    )  # fmt: skip
    arguments = (tmp_path / "python.arguments").read_text()
    assert "--platform here" in arguments
    assert "nonce" not in arguments.replace(str(tmp_path), "")
    assert (tmp_path / "python.nonce").read_text() == nonce
