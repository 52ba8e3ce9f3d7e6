"""Device, sizes and folders of the checks that need a GPU, and trainings in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.faults.results import ROOT
from bench.train.workload import Workload
from plumbline.environments.launch import run_training, trainer_environment
from plumbline.judge import compare
from plumbline.records import LoadedRecord, load_record
from plumbline.report.sentences import spoken
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import InconclusiveError
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.spec import RunSpec, write_spec

Found = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Device and size of the checks."""

    device: str
    size: str
    """In place of base and large, for a walk through; empty as a rule."""
    folder: Path
    out: Path

    @property
    def judges(self) -> bool:
        """Return whether the GPU's requirements apply here."""
        return self.device == "cuda" and not self.size

    @property
    def other(self) -> str:
        """Return the name of the device's own training, told apart from that on the CPU."""
        return self.device if self.device != "cpu" else "cpu-again"

    def environment(self, **changes: str) -> dict[str, str]:
        """Return the trainer's environment on this device; packages that lie on PYTHONPATH stay there."""
        path = [changes.pop("first_on_path", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
        return trainer_environment({"PYTHONPATH": os.pathsep.join(filter(None, path)), **hidden, **changes})

    def train(
        self, workload: Workload, spec: RunSpec, name: str, *, processes: int = 1, out: Path | None = None,
        **environment: str,
    ) -> LoadedRecord:  # fmt: skip
        """Train in a separate process; return its record."""
        out = out or self.folder / name
        write_spec(spec, out.with_suffix(".json"))
        code = run_training(
            out.with_suffix(".json"), out, data=workload.url, cache=self.folder / "cache", platform=name,
            record_id=name, environment=self.environment(**environment), num_processes=processes,
        )  # fmt: skip
        if code:
            raise InconclusiveError(f"the training ended with {code}", where=name)
        return load_record(out)

    def run(self, module: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a module of this repository in a process of its own."""
        command = [sys.executable, "-m", module, *map(str, arguments)]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment(**environment), capture_output=True, text=True, check=False
        )


def ask(place: Place, **asked: bool) -> Found:
    """Return which requirements hold; none apply on a different device."""
    return {"asked": asked if place.judges else {}, "holds": all(asked.values()) if place.judges else None}


def judged(reference: LoadedRecord, candidate: LoadedRecord) -> Found:
    """Return the verdict on two records, in words."""
    judgement = compare(reference, candidate)
    return {
        "verdict": judgement.verdict,
        "notes": [spoken(note.to_json()) for note in judgement.notes],
        "causes": [cause.code for cause in judgement.causes],
        "findings": [spoken(finding.to_json()) for finding in judgement.findings],
    }


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
