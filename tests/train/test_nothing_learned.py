"""Trainings that learn nothing, beside the shipped suite's that learns: none of them is a pass."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

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


def shipped(folder: Path, rows: str = "") -> Shipped:
    """Publish the shipped suite's data, or these rows, and its weights; leave its `speed` part out."""
    text = (ROOT / "deployments/suites/local.toml").read_text().replace("steps = 12\n", "steps = 2\n")
    head, _, rest = text.partition("[workloads.bert-tiny-reviews.speed]")
    learn = rest.partition("[workloads.bert-tiny-reviews.learn]")[2].partition("[platforms.")[0]
    places = f'work_pool = "a"\ndata = "file://{folder}/data"\noutbox = "file://{folder}/out"\n'
    if rows:
        (folder / "rows.csv").write_text(rows)
        keys = "grammar_seed = 1\ntrain_rows = 4096\nevaluation_rows = 1024\n"
        head = head.replace(keys, f'path = "{folder}/rows.csv"\n')
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
    assert (result.verdict, result.accuracy, result.chance) == ("pass", 0.8125, 0.5078125)


def test_a_rate_of_zero_is_no_pass_alone_or_beside_a_healthy_platform(
    healthy: tuple[Shipped, LoadedRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    constant = torch.optim.lr_scheduler.LambdaLR
    monkeypatch.setattr(engine, "make_schedule", lambda optimizer, *_: constant(optimizer, lambda _: 0.0))
    made = healthy[0].train("rate-zero")
    assert alone(made).verdict == "inconclusive"
    assert "nothing was learned" in words(alone(made))
    judged = compare(healthy[1], made)
    assert (judged.verdict, judged.causes[0].code) == ("drift", "schedule")


def test_a_frozen_head_is_a_drift_that_names_it(
    healthy: tuple[Shipped, LoadedRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = engine.make_optimizer

    def frozen(model: nn.Module, *given: Any, **more: Any) -> torch.optim.Optimizer:
        model.get_submodule("classifier").requires_grad_(False)
        return make(model, *given, **more)

    monkeypatch.setattr(engine, "make_optimizer", frozen)
    made = healthy[0].train("frozen")
    judged = compare(healthy[1], made)
    assert judged.verdict == "drift"
    assert "classifier" in words(judged)
    assert "is frozen" in words(judged)


def test_labels_that_are_all_equal_are_no_pass(tmp_path: Path) -> None:
    rows = [f"review {index} of a lovely phone,good" for index in range(1200)]
    made = shipped(tmp_path, "\n".join(["text,label", "review of an awful phone,bad", *rows])).train("equal")
    result = alone(made)
    assert (result.verdict, result.accuracy) == ("inconclusive", 1.0)
    assert "every row gets the same label" in words(result)


def words(result: Judgement) -> str:
    findings = [*result.findings, *(cause.why for cause in result.causes)]
    return " ".join(said(getattr(finding, "detail", finding)) for finding in findings)
