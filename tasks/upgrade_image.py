"""Judge a candidate image on every platform: dispatch trainings in both images, gather, compare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prefect import get_client, task
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from plumbline.central import CentralStore
from plumbline.dispatch import Limits
from plumbline.errors import ConfigurationError
from plumbline.rounds import Assignment, Round
from plumbline.rounds.gathered import GatheredRecords
from plumbline.rounds.judging import gates_of
from plumbline.rounds.published_specs import read_specs
from plumbline.rounds.secret import round_secret
from plumbline.schema.suite import Suite
from plumbline.stores import open_store
from plumbline.upgrade.campaign import Budget
from plumbline.upgrade.candidate import Candidate, read_image
from plumbline.upgrade.image_answer import image_answer
from plumbline.upgrade.images import ImageTrainings
from plumbline.upgrade.outcome import PlatformOutcome, UpgradeOutcome, sum_up
from plumbline.upgrade.session import workload_of
from tasks.dispatch import dispatch_trainings
from tasks.gather import gather_records
from tasks.open_round import check_suite
from tasks.prefect_client.api import server_errors
from tasks.upgrade import chosen_platforms

__all__ = ["ImageUpgrade", "open_image_upgrade", "train_in_both_images"]


@dataclass(frozen=True, slots=True)
class ImageUpgrade:
    """One candidate image, and the platforms that judge it."""

    round: Round
    workload: str
    platforms: tuple[str, ...]
    image: str
    budget: Budget

    @property
    def suite(self) -> Suite:
        """The suite of the platforms."""
        return self.round.suite


@task(name="open image upgrade", persist_result=False)
def open_image_upgrade(
    suite: Suite, upgrade_id: str, candidate: Candidate, *, platforms: Sequence[str], workload: str, budget: Budget,
    releases: bool = False,
) -> ImageUpgrade:  # fmt: skip
    """Check the image and the work pools that have to take it, and read the workload's published recipe."""
    suite = check_suite(suite)
    if releases:
        what = "an image is one change: it has no releases to search"
        raise ConfigurationError(what, where=suite.name, key="releases", hint="leave it out")
    image, chosen = read_image(candidate), chosen_platforms(suite, platforms)
    _check_pools(suite, chosen)
    central = CentralStore(open_store(suite.store))
    name = workload_of(suite, workload or None)
    specs = read_specs(central, suite.replace(workloads={name: suite.workloads[name]}))
    return ImageUpgrade(Round(upgrade_id, suite, specs, round_secret(central, upgrade_id)), name, chosen, image, budget)


def _check_pools(suite: Suite, platforms: Sequence[str]) -> None:
    """Raise `ConfigurationError` unless the runs of every platform's work pool have an image to choose."""
    refused = []
    with server_errors(), get_client(sync_client=True) as client:
        for name in platforms:
            pool = suite.platforms[name].work_pool
            try:
                found = client.read_work_pool(pool)
            except ObjectNotFound as error:
                hint = "run `plumbline deploy SUITE`"
                raise ConfigurationError(f"work pool {pool} does not exist", where=suite.name, hint=hint) from error
            if "image" not in found.base_job_template.get("variables", {}).get("properties", {}):
                refused.append(f"{name} ({found.type})")
    if refused:
        what = f"no image can be chosen for the runs of {', '.join(refused)}"
        hint = "name a lock, or platforms whose work pool has the job variable image: Kubernetes, ECS, Cloud Run, ACI"
        raise ConfigurationError(what, where=suite.name, key="candidate.image", hint=hint)


def train_in_both_images(upgrade: ImageUpgrade) -> UpgradeOutcome:
    """Train in both images on every platform until each has its answer or its budget is spent."""
    trainings = {name: _begin(upgrade, name) for name in upgrade.platforms}
    notes: dict[Assignment, tuple[str, ...]] = {}
    ends = time.monotonic() + upgrade.budget.seconds
    with TemporaryDirectory(prefix="plumbline-") as folder:
        while asked := [one for each in trainings.values() for one in each.wanted(upgrade.budget.trials)]:
            results = dispatch_trainings(upgrade.round, asked, Limits())
            found = gather_records(upgrade.round, results, Path(folder))
            notes |= found.notes
            trainings = {name: _with(each, found) for name, each in trainings.items()}
            if time.monotonic() > ends:
                break
        outcomes = {name: _outcome(upgrade, name, each, notes) for name, each in trainings.items()}
    return sum_up(
        outcomes, upgrade=upgrade.round.id, suite=upgrade.suite.name, workload=upgrade.workload,
        candidate=upgrade.image, candidate_sha256=upgrade.image.rpartition(":")[2],
        flow_run=url_for("flow-run", flow_run.id) or "",
    )  # fmt: skip


def _begin(upgrade: ImageUpgrade, name: str) -> ImageTrainings:
    spec = upgrade.round.specs[upgrade.workload]
    has_numerics = spec.probe is not None or spec.learn is not None
    return ImageTrainings(
        name, upgrade.workload, upgrade.image, gates_of(upgrade.round, name), has_numerics=has_numerics,
        has_speed=spec.speed is not None,
    )  # fmt: skip


def _with(trainings: ImageTrainings, found: GatheredRecords) -> ImageTrainings:
    """Return the trainings of a platform with what was gathered of it."""
    records = {one: record for one, record in found.records.items() if one.platform == trainings.platform}
    absent = {one: absence for one, absence in found.absent.items() if one.platform == trainings.platform}
    return replace(trainings, records={**trainings.records, **records}, absent={**trainings.absent, **absent})


def _outcome(
    upgrade: ImageUpgrade, name: str, trainings: ImageTrainings, notes: dict[Assignment, tuple[str, ...]]
) -> PlatformOutcome:
    answer = image_answer(trainings)
    about: dict[str, Any] = {
        "notes": tuple(line for training, lines in notes.items() if training.platform == name for line in lines),
        "optional": upgrade.suite.platforms[name].optional,
    }
    if not trainings.records:
        return PlatformOutcome(verdict=answer.verdict, why=answer.sentences[0], **about)
    return PlatformOutcome(verdict=answer.verdict, answer=answer, **about)
