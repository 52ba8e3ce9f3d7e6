"""Start of the trainer in its own process, with deterministic settings.

The module does not need torch: the controller starts trainings without torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from plumbline.data.staging.scratch import scratch_folder
from plumbline.environments.control_groups import memory_kills, memory_limit
from plumbline.environments.interpreter import refuse_crash, trainer_python
from plumbline.environments.nodes import ONE_NODE, Nodes
from plumbline.environments.parent_watch import PARENT_WATCH
from plumbline.environments.python_modules import module_command
from plumbline.schema.errors import (
    ConfigurationError,
    ExitCode,
    InvalidInputError,
    PlumblineError,
    TrainingError,
    UnavailableError,
    memory_hint,
)
from plumbline.schema.extras import require
from plumbline.schema.fingerprint import Expected
from plumbline.schema.record import read_record
from plumbline.schema.spec import RunSpec, read_spec
from plumbline.schema.variables import NONCE

if TYPE_CHECKING:
    from plumbline.data.staging.pace import StagingProgress


DETERMINISM = {
    "PYTHONHASHSEED": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUBLAS_EMULATE_DOUBLE_PRECISION": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
MICROBENCHMARKS = "PLUMBLINE_MICROBENCHMARKS"
"""`off`: the speed part does not measure the machine, for a parent that compares pairs on one machine."""
_COMPILER_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_GRACE_SECONDS = 10.0
_WEIGHTS_SECONDS = 1800.0


def trainer_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the trainer's environment variables: this process's, updated by `extra`."""
    environment = {**os.environ, **DETERMINISM, **(extra or {})}
    if not environment.get(_COMPILER_CACHE):
        environment[_COMPILER_CACHE] = str(_private_folder())
    return environment


def _private_folder() -> Path:
    """Return this user's own folder of compiled code: torch's default can be created by any user of the machine."""
    folder = Path(tempfile.gettempdir()) / f"plumbline-compiled-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        hint = f"remove it, or set {_COMPILER_CACHE}"
        raise ConfigurationError("is not a folder of this user alone", where=str(folder), hint=hint)
    return folder


def _processes() -> dict[int, tuple[int, str]]:
    """Return every process's parent and start time; empty without /proc."""
    processes: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended since it was listed
        processes[int(path.parent.name)] = (int(fields[1]), fields[19])
    return processes


def _descendants(pid: int) -> dict[int, str]:
    """Return all descendant processes of `pid` with their start times."""
    processes = _processes()
    family: set[int] = {pid}
    descendants: dict[int, str] = {}
    while new := {child for child, (parent, _) in processes.items() if parent in family and child not in family}:
        family |= new
        descendants |= {child: processes[child][1] for child in new}
    return descendants


def _stop(child: subprocess.Popen[str]) -> None:
    """Stop a child and its descendants: SIGTERM, then SIGKILL.

    The session outlives its leader, so the signal goes to the session; torchrun gives each worker its own session.
    """
    family = _descendants(child.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
        if child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_SECONDS)
    child.wait()
    left = _processes() if family else {}
    for pid, started in family.items():
        if pid in left and left[pid][1] == started:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def started_child(
    command: list[str], environment: Mapping[str, str], folder: Path | None
) -> Iterator[subprocess.Popen[str]]:
    """Yield a child process in a new session; terminate it and its descendants afterwards."""
    child = subprocess.Popen(
        command, env={**environment, PARENT_WATCH: "stdin"}, start_new_session=True, text=True, errors="replace",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder,
    )  # fmt: skip
    try:
        with child:
            try:
                yield child
            finally:
                _stop(child)
    finally:
        for stream in (child.stdin, child.stdout, child.stderr):
            if stream is not None:
                stream.close()


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _relay(stream: IO[str], on_progress: Callable[[dict[str, Any]], None] | None, *, echo: bool) -> None:
    """Forward progress events and other output lines; with `echo`, also to stderr."""
    for line in stream:
        event = _event(line)
        if event is not None and on_progress:
            on_progress(event)
        elif event is None and line.strip():
            if echo:
                sys.stderr.write(line)
            if on_progress:
                on_progress({"event": "said", "line": line.strip()})


def _wait(
    child: subprocess.Popen[str], reader: threading.Thread, deadline: float | None, should_stop: Callable[[], bool]
) -> int:
    while child.poll() is None:
        if should_stop():
            raise UnavailableError("the round has ended", where="trainer")
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise UnavailableError("did not end in time", where="trainer", key="timeout_seconds")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.5 if left is None else min(left, 0.5))
    reader.join(_GRACE_SECONDS)
    return child.returncode


def _command(python: str, spec: Path, out: Path, options: Mapping[str, object], launcher: Sequence[str]) -> list[str]:
    torchrun = [*module_command(python, "torch.distributed.run"), *launcher, "--no-python"] if launcher else []
    given = [part for name, value in options.items() if value not in {None, ""} for part in (f"--{name}", str(value))]
    return [*torchrun, *module_command(python, "plumbline.train"), str(spec), str(out), *given]


def _outcome(code: int, out: Path) -> int:
    """Return the trainer's exit code, after a crash from its record."""
    if code != ExitCode.DRIFT and code in {int(record) for record in ExitCode}:
        return code
    try:
        ending = read_record(out, verify=False).exit
    except InvalidInputError:
        return int(ExitCode.INCONCLUSIVE)
    invalid = ending.status == "failed" and not ending.is_infrastructure
    return int(ExitCode.INVALID if invalid else ExitCode.INCONCLUSIVE)


def run_training(
    spec: Path, out: Path, *, data: str | None, cache: Path, platform: str, record_id: str, round_id: str = "",
    experiment: Path | None = None, environment: Mapping[str, str] | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None, timeout_seconds: float | None = None,
    num_processes: int = 1, should_stop: Callable[[], bool] = lambda: False,
    attempt: int = 0, nonce: str = "", expected: Expected | None = None, python: Path | None = None, echo: bool = True,
    trainer: str = "", nodes: Nodes = ONE_NODE,
) -> int:  # fmt: skip
    """Run a training in its own process; return the exit code.

    A trainer killed by a signal gives 3: training was not judged; 4 if the kernel says that it was for memory, as every
    repetition would end so. One line then says in which part. A library whose import a signal ends is a
    `ConfigurationError`. No process stays running. `should_stop` is polled
    twice a second; once true, the training ends with `UnavailableError`. The trainer's own lines go to stderr if
    `echo`, and to `on_progress` in any case.

    `python` is the interpreter of an environment with a Plumbline of its own. `trainer` names a team's environment
    instead, without Plumbline: it is checked, and its files are staged by this process. Of several `nodes`, each
    calls this for itself.
    """
    options: dict[str, object] = {
        "data": _absolute(data), "cache": cache.absolute(), "platform": platform, "record-id": record_id,
        "round-id": round_id,
        "experiment": experiment.absolute() if experiment else None, "attempt": attempt or None,
        "expected": expected.with_names().model_dump_json() if expected else None,
    }  # fmt: skip
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    with contextlib.ExitStack() as stack:
        variables = {**(environment or {}), NONCE: nonce}
        # Python 3.10 imports from the working directory before anything else.
        folder = python.parent.parent if python else None
        if trainer:
            team = stack.enter_context(trainer_python(trainer))
            python, variables, folder = team.python, {**variables, **team.variables()}, team.folder
            if data is not None:
                spec_read = read_spec(spec)
                options |= {"data": None, "manifest": stack.enter_context(_staged(spec_read, data, cache, on_progress))}
        started_by = str(python or sys.executable)
        command = _command(started_by, spec.absolute(), out.absolute(), options, nodes.launcher(num_processes))
        kills, last = memory_kills(), _Last(on_progress)
        child = stack.enter_context(started_child(command, trainer_environment(variables), folder))
        code = _followed(child, last.on_progress, deadline, should_stop, echo=echo)
        refuse_crash(code, started_by, trainer_environment(variables))
        death = _death(code, (memory_kills() or 0) - (kills or 0), last)
    if death is None:
        return _outcome(code, out)
    if echo:
        sys.stderr.write(f"{death}\n")
    if on_progress is not None:
        on_progress({"event": "said", "line": str(death)})
    return int(death.exit_code)


class _Last:
    """Last progress that a training reported, forwarded to the listener."""

    def __init__(self, listener: Callable[[dict[str, Any]], None] | None) -> None:
        self._listener = listener
        self.part, self.place = "", "trainer"

    def on_progress(self, event: dict[str, Any]) -> None:
        """Remember a progress event's step, and forward the event."""
        if event["event"] == "progress":
            self.part = str(event.get("part", ""))
            self.place = f"trainer: {self.part} step {event.get('step')}"
        if self._listener is not None:
            self._listener(event)


def _death(code: int, num_kills: int, last: _Last) -> PlumblineError | None:
    """Return the error of a trainer killed by a signal or lack of memory. Torchrun's exit code hides a signal."""
    hint = f"{memory_hint(last.part)}, or raise the memory limit of the pod, container or job"
    if num_kills > 0 and code not in {int(known) for known in ExitCode if known is not ExitCode.DRIFT}:
        limit = memory_limit()
        held = f"; the limit is {limit / 2**30:.1f} GiB" if limit else ""
        return TrainingError(
            f"killed by the kernel, which had no memory left for it{held}", where=last.place, hint=hint
        )
    if code == -signal.SIGKILL:
        hint = f"if memory ran out: {hint}"
        return UnavailableError(
            "killed by SIGKILL, without a reason that can be read here", where=last.place, hint=hint
        )
    return None


def _absolute(data: str | None) -> str | None:
    """Return a store URL that is valid from any working directory."""
    kind, _, folder = (data or "").partition("://")
    return f"file://{Path(folder).absolute()}" if kind == "file" and not folder.startswith("~") else data


def _staged(
    spec: RunSpec, data: str, cache: Path, on_progress: Callable[[dict[str, Any]], None] | None
) -> contextlib.AbstractContextManager[str]:
    # Imported for a team's environment only, so that other trainings start faster.
    from plumbline.data.staging.order import staged_files

    def emit(progress: StagingProgress) -> None:
        if on_progress is not None:
            on_progress(progress.event)

    return staged_files(spec, data, cache, emit)


def _followed(
    child: subprocess.Popen[str], on_progress: Callable[[dict[str, Any]], None] | None, deadline: float | None,
    should_stop: Callable[[], bool], *, echo: bool,
) -> int:  # fmt: skip
    """Relay a trainer's output until its end; return the exit code."""
    streams = [stream for stream in (child.stdout, child.stderr) if stream is not None]
    readers = [
        threading.Thread(target=_relay, args=(stream, on_progress), kwargs={"echo": echo}, daemon=True)
        for stream in streams
    ]
    for reader in readers:
        reader.start()
    return _wait(child, readers[-1], deadline, should_stop)


def make_weights(model: dict[str, Any], seed: int, out: Path) -> str:
    """Generate a model's initial weights in a trainer process; return their SHA-256."""
    for module in ("torch", "transformers"):
        require(module)
    with scratch_folder() as folder:
        described = folder / "model.json"
        described.write_text(json.dumps(model), encoding="utf-8")
        command = [*module_command(sys.executable, "plumbline.train.weights"), str(described), str(seed), str(out)]
        try:
            done = subprocess.run(
                command, env=trainer_environment(), capture_output=True, text=True, check=False,
                timeout=_WEIGHTS_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise UnavailableError(f"no weights within {_WEIGHTS_SECONDS:g} s", where=str(out)) from error
    lines = done.stdout.split()
    if done.returncode or not lines:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InvalidInputError(f"the weights could not be made: {why}", where=str(out))
    return lines[-1]
