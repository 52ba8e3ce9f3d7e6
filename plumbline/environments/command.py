"""A team's own command on a worker: fresh files, a bounded run, and a record that is checked before it counts.

Nothing that the command leaves is trusted. Its record must answer this order: the nonce is new for each attempt. Name,
times and files are written by the worker, and a command that fails makes its record one of a failed training.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from plumbline.data.staging.pace import StagingProgress
from plumbline.data.staging.part import disk_errors
from plumbline.data.staging.scratch import scratch_folder
from plumbline.data.staging.shipped import shipped_dataset, shipped_files
from plumbline.environments.command_order import CommandOrder, Place
from plumbline.environments.command_record import answered, write_answer
from plumbline.environments.control_groups import memory_kills
from plumbline.environments.interpreter import CAPTURING, trainer_python
from plumbline.environments.output import Last, Listener, death_of, follow
from plumbline.environments.processes import started_child
from plumbline.environments.python_modules import module_command
from plumbline.environments.supervisor import SIGNALLED
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import ConfigurationError, DiskFullError, ExitCode, InvalidInputError, PlumblineError
from plumbline.schema.escape import without_secrets
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.variables import secret_values

DETERMINISM = {"PYTHONHASHSEED": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1"}
"""Defaults of a command's environment; the platform's own values stay."""
_LEAST_FREE_BYTES = 64 << 20
"""Free space below which a command is ended, so that other trainings of the machine go on."""
_FIRST_LINES, _LAST_LINES, _MAX_CHARS = 200, 100, 1000


class _RecordedError(Exception):
    """The first steps are recorded, and an experiment asks for no more of the training."""


@dataclass
class _Output:
    """First and last lines of a command, without secrets."""

    listener: Listener | None
    echo: bool
    first: list[str] = field(default_factory=list)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    num_lines: int = 0

    def on_line(self, event: dict[str, Any]) -> None:
        """Keep a line, and forward it."""
        line = without_secrets(str(event.get("line", "")), secret_values())[:_MAX_CHARS]
        self.num_lines += 1
        if len(self.first) < _FIRST_LINES:
            self.first.append(line)
        else:
            self.last.append(line)
        if self.listener is not None:
            self.listener({**event, "line": line})

    def tell(self, error: PlumblineError) -> int:
        """Say what went wrong; return the exit code."""
        if self.echo:
            sys.stderr.write(f"{error}\n")
        if self.listener is not None:
            self.listener({"event": "said", "line": str(error)})
        return int(error.exit_code)

    @property
    def last_line(self) -> str:
        """Return the last line, or ""."""
        return (self.last or self.first or [""])[-1]

    def text(self) -> str:
        """Return what is kept."""
        left_out = self.num_lines - len(self.first) - len(self.last)
        middle = [f"({left_out} lines left out)"] if left_out > 0 else []
        return "".join(f"{line}\n" for line in (*self.first, *middle, *self.last))


def run_command(
    order: CommandOrder, out: Path, *, listener: Listener | None, deadline: float | None,
    should_stop: Callable[[], bool], echo: bool,
) -> int:  # fmt: skip
    """Run a command, and write the record in `out`; return the exit code. `deadline` is of the monotonic clock.

    Raises `UnavailableError` at the deadline, and `ConfigurationError` for a command that cannot be started. What went
    wrong otherwise is one line of the listener.
    """
    said = _Output(listener, echo)
    out.mkdir(parents=True, exist_ok=True)
    if (out / RECORD_NAME).exists():
        hint = "name a different folder; a record is never overwritten"
        raise ConfigurationError("contains a record", where=str(out), hint=hint)
    try:
        # Outside of the record's folder, which is published.
        with scratch_folder("command-", out.parent) as scratch, _placed(order, scratch, listener) as place:
            began = datetime.now(timezone.utc)
            death = _run(order, place, said, deadline, should_stop)
            if death is not None and death.exit_code == ExitCode.INCONCLUSIVE:
                return said.tell(death)
            record = answered(order, place, began)
            write_answer(record, place.record, out, said.text())
    except (InvalidInputError, DiskFullError) as error:  # others are the machine's, and the caller tells them
        return said.tell(error)
    if record.exit.status == "completed":
        return int(ExitCode.PASS)
    return said.tell(InvalidInputError(record.exit.message))


@contextlib.contextmanager
def _placed(order: CommandOrder, scratch: Path, listener: Listener | None) -> Iterator[Place]:
    """Yield the folder with fresh copies of the command's files."""
    spec, data, folder, dataset = order.spec, order.data, scratch / "run", None
    suspects = {f"file {name}": sha256 for name, sha256 in spec.files.items()}
    if data is None and (spec.files or spec.data):
        raise ConfigurationError("a command with files needs a store", where=spec.workload, key="data")
    with contextlib.ExitStack() as stack:
        files = (
            stack.enter_context(shipped_files(data, spec.files.values(), order.cache)) if data and spec.files else {}
        )
        with disk_errors(scratch):
            folder.mkdir()
            for name, sha256 in spec.files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(files[sha256], folder / name)
        if data and spec.data is not None:
            dataset = scratch / "data"
            digest, paths = stack.enter_context(_dataset(data, spec.data.name, order.cache, listener))
            suspects[f"dataset {spec.data.name}"] = digest
            with disk_errors(scratch):
                for key, path in paths.items():
                    (dataset / key).parent.mkdir(parents=True, exist_ok=True)
                    (dataset / key).symlink_to(path)
        yield Place(folder, scratch / "record", dataset, suspects)


def _dataset(
    data: str, name: str, cache: Path, listener: Listener | None
) -> contextlib.AbstractContextManager[tuple[str, dict[str, Path]]]:
    def emit(progress: StagingProgress) -> None:
        if listener is not None:
            listener(progress.event)

    return shipped_dataset(data, name, cache, emit)


def _run(
    order: CommandOrder, place: Place, said: _Output, deadline: float | None, should_stop: Callable[[], bool]
) -> PlumblineError | None:
    """Run the command to its end; return the error of a killed one, and note what makes the training a failed one."""

    def is_over() -> bool:
        _check_disk(place.folder)
        if order.experiment is not None and (place.record / RECORD_NAME).is_file():
            raise _RecordedError
        return should_stop()

    with contextlib.ExitStack() as stack:
        environment = {**DETERMINISM, **os.environ, **order.variables, **place.variables(order)}
        binaries = Path(sys.executable).parent
        if order.trainer:
            team = stack.enter_context(trainer_python(order.trainer, CAPTURING))
            environment |= team.variables()
            binaries = team.python.parent
        environment["PATH"] = f"{binaries}{os.pathsep}{environment.get('PATH', os.defpath)}"
        words = _resolved(order.spec, place.folder, environment["PATH"])
        command = [*module_command(sys.executable, "plumbline.environments.supervisor"), *words]
        kills, last = memory_kills(), Last(said.on_line)
        try:
            child = stack.enter_context(started_child(command, environment, place.folder))
            code = follow(child, last.on_progress, deadline, is_over, echo=said.echo, has_events=False)
        except _RecordedError:
            return None
        code = SIGNALLED - code if code > SIGNALLED else code
        death = death_of(code, (memory_kills() or 0) - (kills or 0), last)
        place.problem = str(death or "")
        if code:
            _check_disk(place.folder)  # it may have filled the disk before anyone looked
        if code and death is None:
            place.problem = f"the command ended with exit code {code}: {said.last_line or 'it printed nothing'}"
    changed = [name for name, sha256 in order.spec.files.items() if not _is_same(place.folder / name, sha256)]
    if changed and not place.problem:
        place.problem = f"the command changed its own file {changed[0]}"
    return death


def _check_disk(folder: Path) -> None:
    """Raise `DiskFullError` if the disk is full: then a command's failure says nothing of its training."""
    if shutil.disk_usage(folder).free < _LEAST_FREE_BYTES:
        hint = "free some space, or let the command write less"
        raise DiskFullError("the disk is full", where=str(folder.parent.parent), hint=hint)


def _resolved(spec: CapturedSpec, folder: Path, path: str) -> list[str]:
    """Return the command's words with the program's path."""
    first, *rest = spec.words
    own = str(folder / first) if os.sep in first else first  # an absolute path stays as it is
    program = shutil.which(own, path=path)
    if program is None:
        hint = "name a program on the platform's path, or an executable file of the workload"
        raise ConfigurationError(f"{first!r} is not found", where=spec.workload, key="command", hint=hint)
    return [program, *rest]


def _is_same(file: Path, sha256: str) -> bool:
    try:
        return file.is_file() and not file.is_symlink() and digest_file(file) == sha256
    except OSError:
        return False
