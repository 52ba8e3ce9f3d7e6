"""Bundle (input files) of an experiment on disk.

It has the record parts that the experiment's replays impose.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from plumbline.data.staging.part import disk_errors
from plumbline.judge.confirmation import Request
from plumbline.records import LoadedRecord
from plumbline.schema.errors import InvalidInputError


def write_bundle(request: Request, records: Mapping[str, LoadedRecord], folder: Path) -> Path:
    """Copy the record parts that an experiment needs into `folder`.

    Their names are those in the request's replays.
    """
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for source in request.sources:
            if source.record_id not in records:
                raise InvalidInputError("the experiment's record is missing", where=source.record_id)
            part = records[source.record_id].folder / source.part
            if not part.is_file():
                raise InvalidInputError("the record has no such part", where=source.record_id, key=source.part)
            shutil.copyfile(part, folder / source.key)
    return folder
