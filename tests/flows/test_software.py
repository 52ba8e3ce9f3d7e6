"""Is it the software? Whole rounds on a real server, with an A/B in environments that are built for real.

The trainer alone is replaced: a run reads its loss from the package that its environment imports.
"""

from __future__ import annotations

import functools
import json
import subprocess
import zipfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.data.stores import open_store
from plumbline.environments.installed import keep_lock
from plumbline.flows.regression import regression
from plumbline.judge.history.metrics import row_of
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore, publish_record
from plumbline.night.central.series import extend_series, read_series
from plumbline.night.dispatch import TrainingOrder
from plumbline.night.experiments.ab import Interpreters, build_environments, run_ab
from plumbline.night.rounds.documents import write_specs
from plumbline.schema.digest import digest_file
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.suite import Suite
from tests.flows.conftest import Server
from tests.flows.stubs import Material, StubWorkers, deploy_round, suite_of
from tests.said import said
from tests.train.wheels import make_wheel
from tests.unit.judge.test_speed import speed

pytestmark = pytest.mark.long

PACKAGE, MODULE = "plumbline-test-hook", "plumbline_test_hook"
LOSSES = {"1.0": 0.0, "2.0": 0.15, "3.0": 0.0}
"""The share of speed that each version of the package costs."""
SLOW_MACHINE = 0.15
BEGIN = datetime(2026, 3, 1, 2, tzinfo=UTC)
PAST = 30


@dataclass(frozen=True)
class Wheels:
    """The wheels that an installer finds, and each version as it is installed."""

    folder: Path
    installed: dict[str, Path]
    built: Path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    folder = tmp_path_factory.mktemp("wheels")
    installed = {}
    for version, loss in LOSSES.items():
        make_wheel(folder, PACKAGE, version, {f"{MODULE}.py": f"LOSS = {loss}\n"})
        installed[version] = tmp_path_factory.mktemp("installed")
        with zipfile.ZipFile(folder / f"{MODULE}-{version}-py3-none-any.whl") as wheel:
            wheel.extractall(installed[version])
    built = tmp_path_factory.mktemp("upgrade")
    (lock := folder / "lock.txt").write_text(
        f"{PACKAGE}==1.0 --hash=sha256:{digest_file(folder / f'{MODULE}-1.0-py3-none-any.whl')}\n"
    )
    keep_lock(built, lock)
    return Wheels(folder, installed, built)


@functools.cache
def _loss_in(python: Path) -> float:
    """Return the loss of the package that this interpreter imports."""
    command = [python, "-c", f"import {MODULE}; print({MODULE}.LOSS)"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


class Workers(StubWorkers):
    """Workers whose A/B builds both environments and asks each of them for its loss."""

    def __init__(  # noqa: PLR0917 - one night, fully described
        self, suite: Suite, api_url: str, record: Path, folder: Path, version: str, machine: float, when: datetime,
        wheels: Wheels,
    ) -> None:  # fmt: skip
        super().__init__(suite, api_url, record, folder, measure=self._measured)
        self._version, self._machine, self._when, self._wheels = version, machine, when, wheels
        self._noise = np.random.default_rng(11)

    def _measured(self, _order: dict[str, Any]) -> dict[str, Any]:
        return self._training(LOSSES[self._version])

    def _training(self, loss: float) -> dict[str, Any]:
        """Return what a training in an environment with this loss measures on tonight's machine."""
        record = RunRecord.model_validate_json((self._record / RECORD_NAME).read_bytes())
        packages = {**record.fingerprint.packages, PACKAGE: self._version}
        slower = loss + self._machine + float(self._noise.normal(0, 0.003))
        times = {"started_at": self._when.isoformat(), "finished_at": (self._when + timedelta(minutes=9)).isoformat()}
        fingerprint = record.fingerprint.replace(packages=packages).to_json()
        return {"speed": speed(slower=slower).to_json(), "record": {**times, "fingerprint": fingerprint}}

    def _deliver(self, order: dict[str, Any], changes: dict[str, Any]) -> None:
        wanted = TrainingOrder.model_validate(order)
        if wanted.ab is None:
            return super()._deliver(order, changes)

        def train(built: Interpreters | None, is_tonight: bool, out: Path) -> int:
            measured = self._training(_loss_in(built.tonight if is_tonight else built.baseline))
            content = json.loads((self._record / RECORD_NAME).read_bytes())
            content |= {name: order[name] for name in ("record_id", "platform", "round_id", "attempt", "nonce", "spec")}
            content |= {**measured["record"], "spec_sha256": wanted.spec.digest, "parts": []}
            content["evidence"] = {"speed": measured["speed"]}
            out.mkdir(parents=True)
            (out / RECORD_NAME).write_text(json.dumps(content), encoding="utf-8")
            return 0

        build = self._wheels.built
        _, folder = run_ab(wanted.ab, lambda ab: build_environments(ab, build), train, self._work / "ab")
        assert folder is not None
        publish_record(open_store(order["outbox"]), folder)
        return None


def _night(suite: Suite, material: Material, workers: Workers, when: datetime) -> str:
    name = f"{when:%Y%m%d-%H%M%S}-{suite.name}"
    write_specs(CentralStore(open_store(suite.store)), suite, {"tiny": material[0]})
    with workers:
        regression(suite=suite, round_id=name, return_state=True)
    return name


def _earlier_nights(central: CentralStore, suite: Suite, record: RunRecord) -> None:
    noise = np.random.default_rng(7).normal(0, 0.005, PAST)
    rows = []
    for index, slower in enumerate(noise.tolist()):
        when = BEGIN - timedelta(days=PAST - index)
        evidence = record.evidence.replace(speed=speed(slower=slower).to_json()).to_json()
        changes = {"record_id": f"past-{index:02}", "round_id": f"past-{index:02}", "evidence": evidence}
        rows.append(row_of(record.replace(**changes, started_at=when, finished_at=when)))
    extend_series(central, suite.name, "p00", [row for row in rows if row is not None])


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize(
    ("version", "machine", "reason"), [("2.0", 0.0, "software"), ("3.0", SLOW_MACHINE, "machine")], ids=str
)
def test_a_slower_night_is_the_softwares_only_if_the_ab_shows_it(  # noqa: PLR0917
    server: Server, material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheels: Wheels,
    version: str, machine: float, reason: str,
) -> None:  # fmt: skip
    base = suite_of(tmp_path, f"ab-{reason}", 1).model_dump(mode="json", exclude_none=True)
    suite = Suite.model_validate({**base, "dispatch": {"quorum": 1, "experiments": 0, "reruns": 2, "ab_blocks": 5}})
    deploy_round(suite)
    central = CentralStore(open_store(suite.store))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels.folder))

    def workers(number: int, installed: str, slower: float) -> Workers:
        when, folder = BEGIN + timedelta(days=number), tmp_path / f"work-{number}"
        return Workers(suite, server.api_url, material[1], folder, installed, slower, when, wheels)

    first = central.get_round(suite.name, _night(suite, material, workers(0, "1.0", 0.0), BEGIN))
    (name,) = first.platforms["p00"].records
    accepted = RunRecord.model_validate_json(
        (central.get_record(name, tmp_path / "accepted").folder / RECORD_NAME).read_bytes()
    )
    BaselineBook(central).accept(accepted)
    _earlier_nights(central, suite, accepted)

    monkeypatch.syspath_prepend(wheels.installed[version])
    # Beforehand: these workers report no progress, and on a busy machine a build takes longer than they may be silent.
    build_environments(AbOrder(packages=((PACKAGE, "1.0"),), num_blocks=5, seconds=1), wheels.built)
    later = _night(suite, material, workers(1, version, machine), BEGIN + timedelta(days=1))
    result = central.get_round(suite.name, later).platforms["p00"]
    series = read_series(central, suite.name, "p00")
    entry = next(call for call in reversed(series.calls) if call.metric == "throughput")
    finding = next(finding for finding in result.findings if finding.check == "history.throughput")
    assert (entry.reason, entry.verdict) == (reason, "drift" if reason == "software" else "inconclusive"), finding
    assert "A/B of 20 runs" in said(finding.detail)
    software = [(cause.sure, cause.suspects) for cause in result.causes if cause.code == "software"]
    wanted = [("confirmed", (f"{PACKAGE} 1.0 → {version}",))] if reason == "software" else []
    assert software == wanted, result.causes
    assert len(series) == PAST + 2, "reruns and the A/B are not nights"
