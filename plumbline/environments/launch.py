"""Start of the trainer in its own process, with deterministic settings.

The module does not need torch: the controller starts trainings without torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plumbline.data.staging.scratch import scratch_folder
from plumbline.environments.command_order import CommandOrder
from plumbline.environments.control_groups import memory_kills
from plumbline.environments.interpreter import refuse_crash, trainer_python
from plumbline.environments.nodes import ONE_NODE, Nodes
from plumbline.environments.output import Last, death_of, follow
from plumbline.environments.processes import started_child
from plumbline.environments.python_modules import module_command
from plumbline.schema.captured import CapturedSpec, read_any_spec
from plumbline.schema.errors import (
    ConfigurationError,
    ExitCode,
    InvalidInputError,
    UnavailableError,
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
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    if (ordered := _command_spec(spec)) is not None:
        # Imported for a command only, so that other trainings and a controller start faster.
        from plumbline.environments.command import run_command

        order = CommandOrder(
            ordered, platform, record_id, round_id, attempt, nonce, _absolute(data), cache.absolute(),
            trainer or str(python or ""), environment or {}, experiment,
        )  # fmt: skip
        return run_command(
            order, out.absolute(), listener=on_progress, deadline=deadline, should_stop=should_stop, echo=echo
        )
    options: dict[str, object] = {
        "data": _absolute(data), "cache": cache.absolute(), "platform": platform, "record-id": record_id,
        "round-id": round_id,
        "experiment": experiment.absolute() if experiment else None, "attempt": attempt or None,
        "expected": expected.with_names().model_dump_json() if expected else None,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        variables = {**(environment or {}), NONCE: nonce}
        # Python 3.10 imports from the working directory before anything else.
        folder = python.parent.parent if python else None
        if trainer:
            team = stack.enter_context(trainer_python(trainer))
            python, variables, folder = team.python, {**variables, **team.variables()}, team.folder
            if data is not None:
                options |= {
                    "data": None,
                    "manifest": stack.enter_context(_staged(read_spec(spec), data, cache, on_progress)),
                }
        started_by = str(python or sys.executable)
        command = _command(started_by, spec.absolute(), out.absolute(), options, nodes.launcher(num_processes))
        kills, last = memory_kills(), Last(on_progress)
        child = stack.enter_context(started_child(command, trainer_environment(variables), folder))
        code = follow(child, last.on_progress, deadline, should_stop, echo=echo)
        refuse_crash(code, started_by, trainer_environment(variables))
        death = death_of(code, (memory_kills() or 0) - (kills or 0), last)
    if death is None:
        return _outcome(code, out)
    if echo:
        sys.stderr.write(f"{death}\n")
    if on_progress is not None:
        on_progress({"event": "said", "line": str(death)})
    return int(death.exit_code)


def _command_spec(spec: Path) -> CapturedSpec | None:
    """Return the spec of a command; `None` for one of the trainer, which says itself what is wrong with it."""
    try:
        ordered = read_any_spec(spec)
    except InvalidInputError:
        return None
    return ordered if isinstance(ordered, CapturedSpec) else None


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
