"""Export to TensorBoard event files: nightly numbers, and training curves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plumbline.cli.exchange.runs import NightRun, curves_of, parameters_of
from plumbline.night.central import CentralStore

_NAME = "events.out.tfevents.plumbline"
"""One file a folder, always of this name: exported again, a night replaces itself."""


def write_event_files(central: CentralStore, runs: Sequence[NightRun], folder: Path) -> None:
    """Write `PLATFORM/WORKLOAD/nights` with a point per night, and `PLATFORM/WORKLOAD/ROUND` with the curves."""
    for (platform, workload), own in _by_line(runs).items():
        base = folder / platform / workload
        with _event_file(base / "nights") as file:
            for run in own:
                for name, value in run.metrics.items():
                    file.scalar(name, value, run.place, run.time)
                words = ", ".join((run.verdict or "unknown", *run.causes))
                file.text("verdict", f"{run.round}: {words}", run.place, run.time)
        for run in own:
            _write_curves(central, run, base / run.round)


def _write_curves(central: CentralStore, run: NightRun, folder: Path) -> None:
    record = central.find_record(run.record)
    if record is None:
        return
    with _event_file(folder) as file:
        rows = "\n".join(f"| {name} | `{value}` |" for name, value in parameters_of(record).items())
        file.text("parameters", f"| parameter | value |\n|---|---|\n{rows}", 0, run.time)
        for name, points in curves_of(record).items():
            for step, value in points:
                file.scalar(name, value, step, run.time)


def _by_line(runs: Iterable[NightRun]) -> dict[tuple[str, str], list[NightRun]]:
    """Group the runs with a record by platform and workload."""
    lines: dict[tuple[str, str], list[NightRun]] = {}
    for run in runs:
        if run.record:
            lines.setdefault((run.platform, run.workload), []).append(run)
    return lines


class _EventFile:
    """Writer of one TensorBoard event file."""

    def __init__(self, folder: str) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(folder)

    def scalar(self, name: str, value: float, step: int, time: float) -> None:
        """Add a point of a curve."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._file.add_event(Event(wall_time=time, step=step, summary=summary))

    def text(self, name: str, text: str, step: int, time: float) -> None:
        """Add a text, which is shown as Markdown."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb

        self._file.add_event(Event(wall_time=time, step=step, summary=text_pb(name, text)))

    def close(self) -> None:
        """Write the remaining events, and close the file."""
        self._file.close()


@contextmanager
def _event_file(folder: Path) -> Iterator[_EventFile]:
    """Yield an event file writer; move the finished file into place."""
    with tempfile.TemporaryDirectory(prefix="plumbline-events-") as elsewhere:
        file = _EventFile(elsewhere)
        try:
            yield file
        finally:
            file.close()
        (written,) = Path(elsewhere).iterdir()
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / ".part"  # TensorBoard reads no file of this name
        part.write_bytes(written.read_bytes())
        part.replace(folder / _NAME)
