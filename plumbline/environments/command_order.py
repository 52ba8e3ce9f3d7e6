"""Order of a team's command, and the folders of its run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from plumbline.schema.captured import CapturedSpec
from plumbline.schema.variables import EXPERIMENT, NONCE


@dataclass(frozen=True, slots=True)
class CommandOrder:
    """What a command's record answers, and where it runs."""

    spec: CapturedSpec
    platform: str
    record_id: str
    round_id: str
    attempt: int
    nonce: str
    data: str | None
    """Store of its files and of its dataset."""
    cache: Path
    trainer: str
    """Interpreter of the team's environment, or its folder; empty: the worker's."""
    variables: Mapping[str, str]
    experiment: Path | None = None
    """Folder of the experiment that it runs."""


@dataclass
class Place:
    """Folders of one run."""

    folder: Path
    record: Path
    data: Path | None
    suspects: dict[str, str]
    """Files and dataset by digest."""
    problem: str = ""
    """What makes the training a failed one."""

    def variables(self, order: CommandOrder) -> dict[str, str]:
        """Return the command's variables."""
        spec, experiment = order.spec, order.experiment
        found = {
            "PLUMBLINE_RECORD": str(self.record), "PLUMBLINE_WORKLOAD": spec.workload,
            "PLUMBLINE_STEPS": str(spec.steps), "PLUMBLINE_SEED": str(spec.seed), "PLUMBLINE_ROUND": order.round_id,
            NONCE: order.nonce, EXPERIMENT: str(experiment.absolute()) if experiment is not None else "",
        }  # fmt: skip
        return found | ({"PLUMBLINE_DATA": str(self.data)} if self.data is not None else {})
