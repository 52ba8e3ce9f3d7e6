"""A team's command on a worker, with commands that a worker must survive: one line each, and nothing left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.staging.shipped import file_key
from plumbline.environments import command
from plumbline.environments.launch import run_training
from plumbline.environments.output import follow
from plumbline.environments.parent_watch import PARENT_WATCH
from plumbline.environments.python_modules import module_command
from plumbline.records import load_record
from plumbline.records.part_sizes import check_parts
from plumbline.schema.captured import CapturedEvidence, CapturedSpec, write_any_spec
from plumbline.schema.digest import canonical_json, digest_file
from plumbline.schema.errors import ConfigurationError, ExitCode, UnavailableError
from plumbline.schema.evidence import Evidence
from plumbline.schema.record import Exit, RunRecord
from tests.unit.report.samples import fingerprint

SPEC = CapturedSpec(workload="mine", seed=7, steps=20)
WRITES = """
import json, os, pathlib
folder = pathlib.Path(os.environ["PLUMBLINE_RECORD"])
record = json.loads(pathlib.Path("record.json").read_text())
record["nonce"] = os.environ["PLUMBLINE_NONCE"]
folder.mkdir()
(folder / "record.json").write_text(json.dumps(record))
"""
"""What `plumbline.capture` does at its end, without torch."""


def record(**changes: Any) -> RunRecord:
    now = datetime.now(UTC)
    return RunRecord(**{
        "record_id": "r", "platform": "here", "nonce": "of-another-order", "spec_sha256": SPEC.digest, "spec": SPEC,
        "started_at": now, "finished_at": now, "fingerprint": fingerprint(), "exit": Exit(status="completed"),
        "evidence": Evidence(captured=CapturedEvidence(recorded=(0,))), **changes,
    })  # fmt: skip


@dataclass
class Worker:
    """A worker's folders, with a store that holds the command's files."""

    root: Path
    said: list[str] = field(default_factory=list)

    def run(self, script: str, words: str = "python train.py", *, seconds: float = 60, **files: str) -> int:
        store, digests = self.root / "store", {}
        files = {"record.json": canonical_json(record().to_json()).decode(), "train.py": script, **files}
        for name, text in files.items():
            given = self.root / "given"
            given.write_text(text, encoding="utf-8")
            digests[name] = digest_file(given)
            (store / "files").mkdir(parents=True, exist_ok=True)
            shutil.copyfile(given, store / file_key(digests[name]))
        write_any_spec(SPEC.replace(command=words, files=digests), self.root / "spec.json")
        (self.root / "work").mkdir(exist_ok=True)
        return run_training(
            self.root / "spec.json", self.out, data=f"file://{store}", cache=self.root / "cache", platform="aws",
            record_id="r-1", round_id="20261129-020000-abc", attempt=1, nonce="mine-alone", timeout_seconds=seconds,
            on_progress=lambda event: self.said.append(str(event.get("line"))), echo=False,
        )  # fmt: skip

    @property
    def out(self) -> Path:
        return self.root / "work/record"

    @property
    def processes(self) -> list[int]:
        """Return the running processes that this worker's commands started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                mine = f"PLUMBLINE_RECORD={self.root}/".encode() in path.read_bytes()
                state = path.with_name("stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            found += [int(path.parent.name)] if mine and state != "Z" else []
        return found


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_a_record_is_the_orders_and_its_output_is_kept(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM_TOKEN", "hidden-value")
    assert worker.run(f"{WRITES}\nprint('step 1'); print(os.environ['TEAM_TOKEN'], input.__name__)") == ExitCode.PASS
    read = load_record(worker.out).record
    assert (read.record_id, read.platform, read.round_id, read.attempt) == ("r-1", "aws", "20261129-020000-abc", 1)
    assert read.evidence.captured is not None
    assert read.evidence.captured.identity["file train.py"] == digest_file(worker.root / "given")
    check_parts(read, "here")
    output = (worker.out / "output.txt").read_text()
    assert "step 1" in output
    assert "hidden-value" not in output
    assert list((worker.root / "work").iterdir()) == [worker.out]


def test_a_command_gets_what_the_suite_says_and_no_argument(worker: Worker) -> None:
    names = "['WORKLOAD', 'STEPS', 'SEED', 'ROUND']"
    script = f"{WRITES}import sys; print(*[os.environ['PLUMBLINE_' + x] for x in {names}], sys.argv[1:])"
    assert worker.run(script) == ExitCode.PASS
    assert "mine 20 7 20261129-020000-abc []" in worker.said


FORKS = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    os._exit(0)
"""
BAD: dict[str, tuple[str, str]] = {
    "writes no record": ("print('done')", "the command wrote no record"),
    "prints nothing and fails": ("raise SystemExit(3)", "exit code 3: it printed nothing"),
    "fails": ("raise ValueError('planted')", "exit code 1: ValueError: planted"),
    "half a record": (WRITES + "(folder / 'record.json').write_text('{\"record_id\": \"r')", "not JSON"),
    "another order's record": (WRITES.replace('os.environ["PLUMBLINE_NONCE"]', '"old"'), "a different order"),
    "another training's record": (WRITES.replace('record["nonce"]', 'record["spec"]["seed"] = 8; record["nonce"]'),
                                  "is not the digest of the spec"),
    "lists a part that is not there": (
        WRITES.replace('record["nonce"]', 'record["parts"] = [{"key": "sketches.safetensors", "size": 3, '
                       '"sha256": "0" * 64}]; record["nonce"]'), "is missing from the record"),
    "lists a part outside of its record": (
        WRITES.replace('record["nonce"]', 'record["parts"] = [{"key": "../train.py", "size": 3, "sha256": "0" * 64}]; '
                       'record["nonce"]'), "parts.0.key"),
    "fails behind its record": (WRITES + "raise ValueError('late')", "exit code 1: ValueError: late"),
    "changes its own files": (WRITES + "open('train.py', 'a').write('#')", "changed its own file train.py"),
    "reads standard input": ("input()", "EOFError"),
    "needs a package that is not there": ("import nowhere", "No module named 'nowhere'"),
    "leaves a process and no record": (FORKS, "the command wrote no record"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_command_is_one_line_and_leaves_nothing(worker: Worker, kind: str) -> None:
    script, line = BAD[kind]
    assert worker.run(script) == ExitCode.INVALID
    assert line in worker.said[-1]
    assert "\n" not in worker.said[-1]
    assert not worker.processes
    assert [path.name for path in (worker.root / "work").iterdir()] == ["record"]
    if (worker.out / "record.json").is_file():
        assert load_record(worker.out).record.exit.status == "failed"


def test_a_process_that_a_command_leaves_ends_with_it_and_the_record_counts(worker: Worker) -> None:
    assert worker.run(WRITES + FORKS) == ExitCode.PASS
    assert not worker.processes
    assert "left 1 process running" in worker.said[-1]


def test_a_killed_command_says_nothing_of_its_training(worker: Worker) -> None:
    assert worker.run(WRITES + "import os; os.kill(os.getpid(), 9)") == ExitCode.INCONCLUSIVE
    assert "killed by SIGKILL" in worker.said[-1]
    assert not (worker.out / "record.json").exists()


@pytest.mark.parametrize("script", [
    "import time; time.sleep(600)",
    "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)",
])  # fmt: skip
def test_a_command_that_hangs_ends_at_its_deadline(worker: Worker, script: str) -> None:
    began = time.monotonic()
    with pytest.raises(UnavailableError, match="did not end in time"):
        worker.run(script, seconds=2)
    assert time.monotonic() - began < 40
    assert not worker.processes
    assert not (worker.out / "record.json").exists()


def test_a_command_ends_with_all_that_it_started_when_its_worker_dies(worker: Worker) -> None:
    # The child that has ended has forked the grandchild.
    waits = "os.wait()\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('runs', flush=True)\ntime.sleep(600)"
    script = f"{FORKS}\n{waits}"
    (worker.root / "train.py").write_text(script, encoding="utf-8")
    words = [*module_command(sys.executable, "plumbline.environments.supervisor"), sys.executable, "train.py"]
    variables = {**os.environ, "PLUMBLINE_RECORD": f"{worker.root}/record", PARENT_WATCH: "stdin"}
    with subprocess.Popen(
        words, cwd=worker.root, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdin is not None
        assert supervisor.stdout.readline() == b"runs\n"
        assert len(worker.processes) == 3
        supervisor.stdin.close()  # as the kernel does where the worker is killed
        assert supervisor.wait(60) == 128 + signal.SIGKILL
    assert not worker.processes


def test_a_command_that_is_not_found_is_named_before_anything_runs(worker: Worker) -> None:
    for words in ("trainify --fast", "./train.sh", "tools/../../bin/true"):
        with pytest.raises(ConfigurationError, match=r"command: '.*' is not found"):
            worker.run("", words)


def test_of_a_long_output_the_first_and_the_last_lines_are_kept(worker: Worker) -> None:
    script = WRITES + "print('x' * 50_000_000)\nfor number in range(300_000): print('line', number)"
    assert worker.run(script) == ExitCode.PASS
    output = (worker.out / "output.txt").read_text()
    assert len(output) < 400_000
    assert output.splitlines()[-1] == "line 299999"
    assert "lines left out" in output


def test_a_command_that_fills_the_disk_is_ended_before_the_disk_is_full(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = shutil.disk_usage(worker.root).free
    monkeypatch.setattr(command, "_LEAST_FREE_BYTES", free - (40 << 20))
    script = (
        "import time\nwith open('big', 'wb') as file:\n    while True: file.write(bytes(8 << 20)); time.sleep(0.05)"
    )
    assert worker.run(script) == ExitCode.INCONCLUSIVE
    assert "the disk is full" in worker.said[-1]
    assert not worker.processes
    assert [path.name for path in (worker.root / "work").iterdir()] == ["record"]


def test_a_command_that_has_filled_the_disk_at_once_says_nothing_of_its_training(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "_LEAST_FREE_BYTES", 1 << 60)
    # Nobody looks at the disk while the command runs.
    monkeypatch.setattr(
        command, "follow", lambda child, listener, deadline, _, **more: follow(child, listener, deadline, bool, **more)
    )
    script = "raise OSError(28, 'No space left on device')"
    assert worker.run(script) == ExitCode.INCONCLUSIVE
    assert "the disk is full" in worker.said[-1]


def test_an_old_record_in_the_outputs_folder_is_none_of_this_order(worker: Worker) -> None:
    worker.out.mkdir(parents=True)
    (worker.out / "record.json").write_bytes(canonical_json(record().to_json()))
    with pytest.raises(ConfigurationError, match="contains a record"):
        worker.run("print('done')")
