"""Experiments' bundles on their way to a platform: through its own outbox, `experiment.json` last."""

from __future__ import annotations

from pathlib import Path

from plumbline.central.outbox import record_key
from plumbline.errors import CorruptDataError, InvalidInputError
from plumbline.schema.base import read_model
from plumbline.schema.experiment import EXPERIMENT_NAME, Experiment
from plumbline.schema.manifest import safe_key
from plumbline.stores import ObjectMissingError, Store, ensure_object, read_bytes

__all__ = ["fetch_bundle", "has_record", "publish_bundle"]

_MAX_BYTES = 4 << 30
_MAX_FILES = 64
_BUFFER_BYTES = 1 << 20


def has_record(outbox: Store, record_id: str) -> bool:
    """Whether the outbox holds the record whole: its marker is written last."""
    try:
        outbox.stat(record_key(record_id))
    except ObjectMissingError:
        return False
    return True


def _prefix(experiment_id: str) -> str:
    return f"experiments/{experiment_id}/"


def publish_bundle(outbox: Store, folder: Path, experiment: Experiment) -> None:
    """Send the bundle in `folder`; doing it again does nothing."""
    prefix = _prefix(experiment.experiment_id)
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != EXPERIMENT_NAME:
            ensure_object(outbox, prefix + path.relative_to(folder).as_posix(), path)
    ensure_object(outbox, prefix + EXPERIMENT_NAME, experiment.model_dump_json().encode())


def fetch_bundle(outbox: Store, experiment_id: str, into: Path) -> Path:
    """The bundle as a folder; exactly the files that its experiment names, and no more than is sane."""
    prefix = _prefix(experiment_id)
    content = read_bytes(outbox, prefix + EXPERIMENT_NAME)
    experiment = read_model(Experiment, content, where=f"{outbox.url}/{prefix}{EXPERIMENT_NAME}")
    sources = sorted({replay.source for replay in experiment.replays if replay.source is not None})
    if experiment.experiment_id != experiment_id or len(sources) > _MAX_FILES:
        raise InvalidInputError("is not the experiment that was asked for", where=outbox.url, key=prefix)
    into.mkdir(parents=True, exist_ok=True)
    for source in sources:
        _download(outbox, prefix + safe_key(source), into / source)
    (into / EXPERIMENT_NAME).write_bytes(content)
    return into


def _download(outbox: Store, key: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    with outbox.open(key) as reader, path.open("wb") as file:
        if reader.info.size > _MAX_BYTES:
            raise CorruptDataError(f"{reader.info.size} bytes, more than the {_MAX_BYTES} allowed", where=key)
        while size := reader.readinto(buffer):
            file.write(buffer[:size])
