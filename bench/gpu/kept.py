"""Records that are kept with the results, without what is of the machine's folders alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from plumbline.records import LoadedRecord
from plumbline.schema.digest import canonical_json
from plumbline.schema.record import RECORD_NAME


def names_a_path(value: str) -> bool:
    """Return whether a variable's value has an absolute path, alone or in a list."""
    return any(part.startswith("/") for part in value.split(os.pathsep))


def keep(out: Path, *records: LoadedRecord) -> None:
    """Copy records to `out`, without the variables that name paths of this machine."""
    for loaded in records:
        folder = out / loaded.folder.name
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(loaded.folder, folder)
        fingerprint = loaded.record.fingerprint
        environment = {name: value for name, value in fingerprint.environment.items() if not names_a_path(value)}
        kept = loaded.record.replace(fingerprint=fingerprint.replace(environment=environment))
        (folder / RECORD_NAME).write_bytes(canonical_json(kept.to_json()))
