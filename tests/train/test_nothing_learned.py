"""Trainings that learn nothing, beside the shipped suite's that learns: none of them is a pass."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from plumbline.judge import compare, judge_round
from plumbline.night.prepare import prepare
from plumbline.records import LoadedRecord, load_record
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import read_suite
from plumbline.schema.verdict import Judgement
from plumbline.train import engine
from plumbline.train.job import TrainJob, run_job
from tests.said import said

pytestmark = pytest.mark.long
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Shipped:
    """The shipped suite's learning curve, with a small probe."""

    folder: Path
    spec: RunSpec

    def train(self, name: str) -> LoadedRecord:
        out = self.folder / name
        job = TrainJob(
            spec=self.spec, out=out, data=f"file://{self.folder}/data", cache=self.folder / "cache", platform=name,
            record_id=name,
        )  # fmt: skip
        run_job(job, threading.Event())
        return load_record(out)


def shipped(folder: Path) -> Shipped:
    """Publish the shipped suite's data and its weights; leave its `speed` part out."""
    text = (ROOT / "deployments/suites/local.toml").read_text().replace("steps = 12\n", "steps = 2\n")
    head, _, rest = text.partition("[workloads.bert-tiny-reviews.speed]")
    learn = rest.partition("[workloads.bert-tiny-reviews.learn]")[2].partition("[platforms.")[0]
    places = f'work_pool = "a"\ndata = "file://{folder}/data"\noutbox = "file://{folder}/out"\n'
    path = folder / "suite.toml"
    path.write_text(f"{head}[workloads.bert-tiny-reviews.learn]{learn}[platforms.aws-local]\n{places}")
    return Shipped(folder, prepare(read_suite(path), folder / "build", lambda _: None)["bert-tiny-reviews"])


def alone(record: LoadedRecord) -> Judgement:
    """Judge a platform without another one, as the first night of a fault that all platforms share."""
    return judge_round({"p": record}, "p", {})["p"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shipped, LoadedRecord]:
    task = shipped(tmp_path_factory.mktemp("shipped"))
    return task, task.train("healthy")


def test_the_shipped_suite_learns(healthy: tuple[Shipped, LoadedRecord]) -> None:
    result = alone(healthy[1])
    assert (result.verdict, result.chance) == ("pass", 0.5078125)
    assert result.accuracy > 0.7


def test_a_rate_of_zero_is_no_pass_alone_or_beside_a_healthy_platform(
    healthy: tuple[Shipped, LoadedRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = torch.optim.lr_scheduler.LambdaLR
    monkeypatch.setattr(engine, "make_schedule", lambda optimizer, *_: constant(optimizer, lambda _: 0.0))
    made = healthy[0].train("rate-zero")
    assert alone(made).verdict == "inconclusive"
    assert "nothing was learned" in " ".join(said(finding.detail) for finding in alone(made).findings)
    judged = compare(healthy[1], made)
    assert (judged.verdict, judged.causes[0].code) == ("drift", "schedule")
