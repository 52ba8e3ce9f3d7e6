"""`--json` prints one JSON document on every outcome, including errors."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from plumbline.cli.main import main
from plumbline.local.signals import terminations_interrupt
from plumbline.schema.errors import ExitCode
from tests.record_parts import write_arrays
from tests.unit.judge.conftest import make_record


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_records_that_cannot_be_read(content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "record.json").write_bytes(content)
    result = main(["compare", str(tmp_path / "left"), str(tmp_path / "right"), "--json"])
    out, err = capsys.readouterr()
    output = json.loads(out)
    assert (result, output["exit_code"], output["verdict"]) == (ExitCode.INVALID, 4, "invalid")
    assert output["error"]["message"] in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption(tmp_path: Path, number: signal.Signals) -> None:
    """A real signal, while the command waits for a record that a named pipe never delivers."""
    (tmp_path / "left").mkdir()
    os.mkfifo(tmp_path / "suite.toml")
    command = [sys.executable, "-m", "plumbline", "compare", "left", "left", "--json", "--suite", "suite.toml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 120
        while not _waits_in_open(running.pid) and time.monotonic() < deadline and running.poll() is None:
            time.sleep(0.05)
        running.send_signal(number)
        try:
            out, err = running.communicate(timeout=300)
        finally:
            running.kill()
    assert out, err
    document = json.loads(out)
    assert (document["verdict"], document["exit_code"]) == ("inconclusive", 3)
    assert document["error"]["message"] == "interrupted"
    assert running.returncode == ExitCode.INCONCLUSIVE


def test_an_ignored_signal_stays_ignored() -> None:
    """`nohup` lets a command survive its terminal."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminations_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def _record(folder: Path, version: str) -> str:
    made = make_record(loss_factor=1.1 if version else 1.0, fingerprint={"packages": {"torch": version}})
    record = made.record.replace(parts=write_arrays(folder, made.arrays))
    (folder / "record.json").write_text(record.model_dump_json(), encoding="utf-8")
    return str(folder)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_the_verdict_is_printed_whatever_the_terminal_can_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    arguments = ["compare", _record(tmp_path / "left", ""), _record(tmp_path / "right", "2.13 → 2.14 🦀")]
    printed = []
    for more in (["--json"], []):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(sys, "stdout", stdout)
        assert main([*arguments, *more]) == ExitCode.DRIFT
        stdout.flush()
        printed.append(stdout.buffer.getvalue())  # type: ignore[attr-defined]
    judgement = json.loads(printed[0].decode("ascii"))
    assert judgement["verdict"] == "drift"
    assert any("→" in line for line in judgement["suspects"])
    assert b" DRIFT unit (candidate) against unit (reference)" in printed[1]


def _waits_in_open(pid: int) -> bool:
    """Return whether a process waits for the other end of a named pipe."""
    try:
        return "wait_for_partner" in Path(f"/proc/{pid}/wchan").read_text(encoding="ascii")
    except OSError:
        return False
