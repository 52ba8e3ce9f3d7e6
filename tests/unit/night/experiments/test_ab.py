"""An A/B runs two environments in blocks, ends within its time, and says why where it cannot be run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from plumbline.night.experiments.ab import build_environments, run_ab
from plumbline.schema.errors import DiskFullError, UnavailableError
from plumbline.schema.experiment import AbOrder
from plumbline.schema.record import RECORD_NAME, RunRecord, read_record
from tests.unit.judge.conftest import make_record
from tests.unit.judge.test_speed import speed

ORDER = AbOrder(packages=(("torch", "2.12.0"), ("numpy", "")), num_blocks=6, seconds=1000)
BASE = make_record().record


class Trainer:
    """Writes records as the trainer does; the clock runs ten seconds a training."""

    def __init__(self, folder: Path, code: Callable[[int, bool], int] = lambda *_: 0) -> None:
        self.folder, self.code = folder, code
        self.ran: list[bool] = []

    def __call__(self, _built: object, is_tonight: bool, out: Path) -> int:
        index = len(self.ran)
        self.ran.append(is_tonight)
        code = self.code(index, is_tonight)
        evidence = BASE.evidence.replace(speed=speed(slower=0.1 if is_tonight else 0.0).to_json())
        ending = {"status": "completed"} if code == 0 else {"status": "failed", "code": "x", "message": "it broke"}
        out.mkdir(parents=True)
        record: RunRecord = BASE.replace(evidence=evidence, exit=ending, parts=())
        (out / RECORD_NAME).write_text(record.model_dump_json())
        return code

    def clock(self) -> float:
        return 10.0 * len(self.ran)

    def run(self, order: AbOrder = ORDER, build: Callable[[AbOrder], object] = lambda _: None):
        code, folder = run_ab(order, build, self, self.folder, self.clock)
        return code, read_record(folder) if folder else None


def test_runs_follow_the_drawn_order_and_one_record_holds_every_run(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    code, record = trainer.run()
    assert code == 0
    assert trainer.ran == [is_tonight for block in range(6) for is_tonight in ORDER.block(block)]
    found = record.evidence.ab
    assert found.order_sha256 == ORDER.digest
    assert [run.block for run in found.runs] == [block for block in range(6) for _ in range(4)]
    by_side = {
        side: {run.metrics["throughput"] for run in found.runs if run.is_tonight == side} for side in (True, False)
    }
    assert max(by_side[True]) < min(by_side[False])
    assert len(list(tmp_path.iterdir())) == 1, "the folders of the other trainings are deleted"


def test_no_block_is_started_that_would_end_too_late(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    _, record = trainer.run(ORDER.replace(seconds=130))
    assert len(record.evidence.ab.runs) == 12


def test_a_baseline_that_cannot_be_built_is_said(tmp_path: Path) -> None:
    def build(_order: AbOrder) -> None:
        raise UnavailableError("no matching distribution", where="torch==2.12.0")

    trainer = Trainer(tmp_path)
    code, record = trainer.run(build=build)
    assert (code, trainer.ran) == (0, [True])
    assert record.evidence.ab.unavailable == "torch==2.12.0: no matching distribution"


def test_a_package_on_pythonpath_cannot_be_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "beside" / "abmark-2.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: abmark\nVersion: 2.0\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "beside"))
    monkeypatch.syspath_prepend(tmp_path / "beside")
    order = AbOrder(packages=(("abmark", "1.0"),), num_blocks=5, seconds=1)
    with pytest.raises(UnavailableError, match="abmark is on PYTHONPATH, which both environments import first"):
        build_environments(order, tmp_path / "upgrade")


def test_a_full_disk_says_nothing_about_the_environment(tmp_path: Path) -> None:
    def build(_order: AbOrder) -> None:
        raise DiskFullError("no room left")

    with pytest.raises(DiskFullError):
        Trainer(tmp_path).run(build=build)


def test_a_baseline_that_cannot_train_is_said(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, lambda _, is_tonight: 0 if is_tonight else 4)
    code, record = trainer.run()
    assert (code, trainer.ran) == (0, [True, False])
    assert record.evidence.ab.unavailable == "the baseline's environment cannot train: it broke"


def test_tonights_failure_is_the_outcome(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, lambda index, _: 3 if index == 3 else 0)
    code, record = trainer.run()
    assert (code, record.exit.status) == (3, "failed")
    assert record.evidence.ab.order_sha256 == ORDER.digest


@pytest.mark.parametrize(
    "package",
    [("--index-url=http://x", "1"), ("torch", "1 --pre"), ("../torch", "1"), ("torch", "@ file:///x"), ("", "1")],
)
def test_names_and_versions_are_no_options_of_an_installer(package: tuple[str, str]) -> None:
    with pytest.raises(ValidationError):
        AbOrder(packages=(package,), num_blocks=5, seconds=1)
