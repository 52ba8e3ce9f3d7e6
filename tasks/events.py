"""Progress of a flow run, published as a Prefect artifact."""

from __future__ import annotations

import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from plumbline.schema.escape import escape, without_secrets
from plumbline.schema.variables import secret_values
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

_BEAT_SECONDS = 5.0
_SHORTEST_SECONDS = 1.0
_KEPT_LINES = 100
"""Number of a trainer's first lines, and of its last, in the log of its run."""
_MAX_CHARS = 1000


class TrainerOutput:
    """Filter that logs a trainer's first and last output lines."""

    def __init__(self, logger: Log) -> None:
        self._logger, self._count = logger, 0
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)
        self._lock = threading.Lock()  # one thread each reads stdout and stderr

    def add(self, line: str) -> None:
        """Log a line, or buffer it as one of the last lines."""
        text = escape(without_secrets(line, secret_values())[:_MAX_CHARS], "log")
        with self._lock:
            self._count += 1
            if self._count > _KEPT_LINES:
                self._last.append(text)
            else:
                self._logger.info("%s", text)

    def close(self) -> None:
        """Log the last lines, and how many lines were omitted."""
        with self._lock:
            if (num_left_out := self._count - _KEPT_LINES - len(self._last)) > 0:
                self._logger.info("(%d lines left out)", num_left_out)
            for text in self._last:
                self._logger.info("%s", text)
            self._last.clear()
            self._count = 0


class ProgressReporter:
    """Context manager that updates the progress artifact at most once a second."""

    def __init__(self, logger: Log) -> None:
        self._logger = logger
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._shown: tuple[float, str] = (0.0, "starting")
        self._artifact: UUID | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._beat,), name="progress", daemon=True)
        self.last_line = ""
        self._output = TrainerOutput(logger)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._output.close()
        if error is None:
            self._shown = (100.0, self._shown[1])
        self._ended.set()
        self._changed.set()
        self._thread.join(timeout=_BEAT_SECONDS)

    def on_progress(self, event: dict[str, Any]) -> None:
        """Handle one progress event of the trainer."""
        if event.get("event") == "said":
            self._output.add(line := str(event.get("line", "")))
            # Under a failure's record torchrun draws a line.
            self.last_line = line if line.strip("=-* ") else self.last_line
        part, step, steps = event.get("part"), event.get("step"), event.get("steps")
        if part is None:
            return
        percent = 100.0 * float(step) / float(steps) if step is not None and steps else 0.0
        self.show(percent, str(part), f"{part} {step}/{steps}" if steps else str(part))

    def show(self, percent: float, part: str, text: str) -> None:
        """Set the artifact's percentage and text, prefixed by the part's name."""
        text = escape(text, "log")  # a trainer's word
        is_first = not self._shown[1].startswith(part)
        self._shown = (min(100.0, percent), text)
        self._changed.set()
        if is_first:
            self._logger.info("%s", text)

    def _beat(self) -> None:
        while not self._ended.is_set():
            self._ended.wait(_SHORTEST_SECONDS)  # first: a run that starts has more urgent requests for the server
            self._publish()
            self._changed.wait(_BEAT_SECONDS)
            self._changed.clear()
        # Publish the last state too: a bar below 100% would look like a hang.
        self._publish()

    def _publish(self) -> None:
        percent, text = self._shown
        try:
            if self._artifact is None:
                self._artifact = cast("UUID", create_progress_artifact(percent, description=text))
            else:
                update_progress_artifact(self._artifact, percent, description=text)
        except PREFECT_ERRORS as error:
            self._logger.warning("the server did not accept the progress: %s", error)


class Phases:
    """Phases of a round, shown as progress and timed."""

    def __init__(self, reporter: ProgressReporter, names: Sequence[str]) -> None:
        self.timings: dict[str, float] = {}
        self._reporter = reporter
        self._names = names

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Enter the phase `name`."""
        place, count = self._names.index(name), len(self._names)
        self._reporter.show(100.0 * place / count, name, f"{name}: {place + 1} of {count}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.timings[name] = self.timings.get(name, 0.0) + time.monotonic() - began
