"""Transfer of experiment bundles through a platform's outbox.

`experiment.json` is written last.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from plumbline.data.staging.part import disk_errors
from plumbline.data.stores import Store, ensure_object, read_bytes
from plumbline.night.central.outbox import download
from plumbline.schema.base import Model, read_model
from plumbline.schema.digest import digest_file
from plumbline.schema.errors import CorruptDataError, InvalidInputError
from plumbline.schema.experiment import EXPERIMENT_NAME, Experiment
from plumbline.schema.manifest import DataFile

_MAX_BYTES = 4 << 30
_MAX_FILES = 64
_LOOKS = 3
_FILES_NAME = "files.json"


class BundleFiles(Model):
    """List of a bundle's files besides `experiment.json`."""

    files: tuple[DataFile, ...] = Field(max_length=_MAX_FILES, fail_fast=True)


def _prefix(experiment_id: str) -> str:
    return f"experiments/{experiment_id}/"


def publish_bundle(outbox: Store, folder: Path, experiment: Experiment) -> None:
    """Upload the bundle in `folder`. Idempotent."""
    prefix = _prefix(experiment.experiment_id)
    paths = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    paths.pop(EXPERIMENT_NAME, None)
    files = tuple(DataFile(key=key, size=path.stat().st_size, sha256=digest_file(path)) for key, path in paths.items())
    for file in files:
        ensure_object(outbox, prefix + file.key, paths[file.key], sha256=file.sha256)
    ensure_object(outbox, prefix + _FILES_NAME, BundleFiles(files=files).model_dump_json().encode())
    ensure_object(outbox, prefix + EXPERIMENT_NAME, experiment.model_dump_json().encode())


def fetch_bundle(outbox: Store, experiment_id: str, into: Path) -> Path:
    """Download the bundle's files exactly as uploaded.

    A tensor damaged in transit would refute the right cause.
    """
    prefix = _prefix(experiment_id)
    content = read_bytes(outbox, prefix + EXPERIMENT_NAME)
    experiment = read_model(Experiment, content, where=f"{outbox.url}/{prefix}{EXPERIMENT_NAME}")
    sources = sorted({replay.source for replay in experiment.replays if replay.source is not None})
    if experiment.experiment_id != experiment_id or len(sources) > _MAX_FILES:
        raise InvalidInputError("is not the requested experiment", where=outbox.url, key=prefix)
    where = f"{outbox.url}/{prefix}{_FILES_NAME}"
    listed = read_model(BundleFiles, read_bytes(outbox, prefix + _FILES_NAME), where=where)
    files = {file.key: file for file in listed.files}
    with disk_errors(into):
        into.mkdir(parents=True, exist_ok=True)
        for source in sources:
            if source not in files or files[source].size > _MAX_BYTES:
                raise InvalidInputError(f"does not list {source!r} with a valid size", where=where, key="files")
            _download(outbox, prefix, files[source], into)
        (into / EXPERIMENT_NAME).write_bytes(content)
    return into


def _download(outbox: Store, prefix: str, file: DataFile, into: Path) -> None:
    for _ in range(_LOOKS - 1):
        try:
            return download(outbox, prefix + file.key, file, into / file.key)
        except CorruptDataError:
            (into / file.key).unlink(missing_ok=True)
    return download(outbox, prefix + file.key, file, into / file.key)
