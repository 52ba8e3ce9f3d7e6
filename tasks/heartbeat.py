"""A sign of life and the progress of a training, as a Prefect artifact that the controller and the UI read."""

from __future__ import annotations

import contextvars
import logging
import threading
from types import TracebackType
from typing import Any, Self, cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from tasks.observing import PREFECT_ERRORS

__all__ = ["Heartbeat"]

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]

_BEAT_SECONDS = 5.0
_QUICKEST_SECONDS = 1.0


class Heartbeat:
    """Updates the artifact at every progress, at most once a second, and every few seconds without any."""

    def __init__(self, logger: Log) -> None:
        self._logger = logger
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._shown: tuple[float, str] = (0.0, "starting")
        self._artifact: UUID | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._beat,), name="heartbeat", daemon=True)
        self.last_words = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._changed.set()
        self._thread.join(timeout=_BEAT_SECONDS)

    def on_progress(self, event: dict[str, Any]) -> None:
        """Take one line of the trainer's progress."""
        if event.get("event") == "said":
            self.last_words = str(event.get("line", ""))
        part, step, steps = event.get("part"), event.get("step"), event.get("steps")
        if part is None:
            return
        share = 100.0 * float(step) / float(steps) if step is not None and steps else 0.0
        words = f"{part}: {event['words']}" if "words" in event else f"{part} {step}/{steps}" if steps else str(part)
        first_of_part = not self._shown[1].startswith(str(part))
        self._shown = (min(100.0, share), words)
        self._changed.set()
        if first_of_part:
            self._logger.info("%s", words)

    def _beat(self) -> None:
        while not self._ended.is_set():
            self._ended.wait(_QUICKEST_SECONDS)  # first: a run that starts has more urgent things to ask of the server
            self._show()
            self._changed.wait(_BEAT_SECONDS)
            self._changed.clear()
        # What it came to, too: a bar that stands at the last beat before the end would seem to hang.
        self._show()

    def _show(self) -> None:
        share, words = self._shown
        try:
            if self._artifact is None:
                self._artifact = cast("UUID", create_progress_artifact(share, description=words))
            else:
                update_progress_artifact(self._artifact, share, description=words)
        except PREFECT_ERRORS as error:
            self._logger.warning("the server did not take the progress: %s", error)
