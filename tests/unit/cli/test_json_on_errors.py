"""`--json` prints one JSON document on every outcome, including errors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plumbline.cli.main import main
from plumbline.errors import ExitCode


@pytest.mark.parametrize(
    ("content", "code", "verdict"),
    [(None, ExitCode.USAGE, None), (b"{", ExitCode.INVALID, "invalid"), (b"\xff", ExitCode.INVALID, "invalid")],
)
def test_records_that_cannot_be_read(
    content: bytes | None, code: ExitCode, verdict: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "record.json").write_bytes(content)
    result = main(["compare", str(tmp_path / "left"), str(tmp_path / "right"), "--json"])
    out, err = capsys.readouterr()
    output = json.loads(out)
    assert (output["verdict"], output["exit_code"]) == ({2: None, 3: "inconclusive", 4: "invalid"}[result], result)
    assert output["error"]["message"] in err
    if content is not None:
        assert (result, output["verdict"]) == (code, verdict)


def test_without_json_nothing_is_printed_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path), str(tmp_path)]) != ExitCode.PASS
    assert capsys.readouterr().out == ""


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--json"])
    assert json.loads(capsys.readouterr().out)["exit_code"] == ExitCode.USAGE


def test_an_interruption(tmp_path: Path) -> None:
    """A real SIGINT, while the command waits for a record that a named pipe never delivers."""
    (tmp_path / "left").mkdir()
    os.mkfifo(tmp_path / "suite.toml")
    command = [sys.executable, "-m", "plumbline", "compare", "left", "left", "--json", "--suite", "suite.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 60
        while not _waits_in_open(running.pid) and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert out, err
    document = json.loads(out)
    assert (document["verdict"], document["exit_code"]) == ("inconclusive", 3)
    assert document["error"]["message"] == "interrupted"
    assert running.returncode == ExitCode.INCONCLUSIVE


def _waits_in_open(pid: int) -> bool:
    """Return whether a process waits for the other end of a named pipe."""
    try:
        return "wait_for_partner" in Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
    except OSError:
        return False
