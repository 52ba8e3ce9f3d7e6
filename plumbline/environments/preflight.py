"""Checks before a training: names, store URL, contents of the output folder.

The module is outside of `plumbline.train`, as two callers use it: the command line, which has no torch, and the
trainer, which `torchrun` may start without the command line.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from plumbline.data.stores import open_store
from plumbline.schema.base import Name
from plumbline.schema.errors import (
    DISK_FULL,
    WRONG_PATH,
    ConfigurationError,
    DiskFullError,
    InvalidInputError,
    UnavailableError,
)
from plumbline.schema.experiment import EXPERIMENT_NAME
from plumbline.schema.record import read_record
from plumbline.schema.spec import RunSpec

_NAME = TypeAdapter[str](Name)


def check_training(
    spec: RunSpec, out: Path, *, data: str | None, cache: Path, platform: str, record_id: str,
    experiment: Path | None = None,
) -> None:  # fmt: skip
    """Create the output folder, and check everything that the training needs."""
    _check_name(platform, option="--platform")
    _check_name(record_id, option="--record-id")
    if data is not None:
        _check_url(data)
        _make_folder(cache, option="--cache")  # A cache that receives no file need not be writable.
    if experiment is not None and not (experiment / EXPERIMENT_NAME).is_file():
        hint = "name the folder of an experiment's bundle"
        raise ConfigurationError(f"contains no {EXPERIMENT_NAME}", where=str(experiment), key="--experiment", hint=hint)
    _make_folder(out, option="--out")
    _spare_record(
        out,
        {
            "spec": spec.digest[:12],
            "platform": platform,
            "record id": record_id,
            "kind": "experiment" if experiment else "training",
        },
    )


def _check_name(name: str, *, option: str) -> None:
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        hint = "1 to 63 of lower-case letters, digits, dots, dashes and underscores, the first a letter or digit"
        raise ConfigurationError(f"{name!r} is not a valid name", key=option, hint=hint) from error


def _check_url(url: str) -> None:
    """Validate the store URL as the trainer will, without network access."""
    try:
        open_store(url)
    except ConfigurationError as error:
        raise ConfigurationError(error.what, where=error.where, key="--data", hint=error.hint) from error


def _make_folder(folder: Path, *, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFullError(f"cannot be created: {error.strerror}", where=str(folder)) from error
        if error.errno not in WRONG_PATH:
            raise UnavailableError(f"cannot be created: {error.strerror}", where=str(folder)) from error
        text = "is not a folder" if isinstance(error, FileExistsError) else f"cannot be created: {error.strerror}"
        raise ConfigurationError(text, where=str(folder), key=option, hint="name a different folder") from error
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        text = "is a folder that may not be written to"
        raise ConfigurationError(text, where=str(folder), key=option, hint="name a different folder")


def _spare_record(out: Path, mine: dict[str, str]) -> None:
    """Raise if the folder contains a different training's completed record.

    A failed record may be replaced, and an unreadable one is the rest of a killed training.
    """
    try:
        record = read_record(out, verify=False)
    except InvalidInputError:
        return
    if record.exit.status != "completed":
        return
    theirs = {
        "spec": record.spec_sha256[:12],
        "platform": record.platform,
        "record id": record.record_id,
        "kind": "experiment" if record.experiment else "training",
    }
    for key, value in mine.items():
        if theirs[key] != value:
            raise ConfigurationError(
                f"contains a different completed record, whose {key} is {theirs[key]}, not {value}",
                where=str(out), key="--out", hint="name a different folder; a record is never overwritten",
            )  # fmt: skip
