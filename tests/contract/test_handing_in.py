"""Worker task around the trainer: it reports progress for its whole duration."""

from __future__ import annotations

import errno
import venv
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from prefect.logging import disable_run_logger

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.dispatch import TrainingOrder
from plumbline.schema.errors import AccessError, DiskFullError, ExitCode
from plumbline.schema.record import read_record
from plumbline.tasks import train as module
from plumbline.tasks.events import ProgressReporter
from tests.contract.records import make_record


def make_order(folder: Path) -> TrainingOrder:
    return TrainingOrder(
        platform="aws", data=f"file://{folder}/data", outbox=f"file://{folder}/outbox", record_id="record-1",
        round_id="round-1", spec=read_record(make_record(folder / "made", "record-0", "aws")).spec, run_seconds=60,
    )  # fmt: skip


def test_the_record_is_handed_in_under_a_beating_heart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outbox may be away for minutes; a training that is silent for one is given up, and trained again."""
    beating: list[bool] = []
    handed_in: list[bool] = []

    class Heart:
        last_line = ""

        def __init__(self, _: object) -> None:
            pass

        def __enter__(self) -> Self:
            beating.append(True)
            return self

        def __exit__(self, *_: object) -> None:
            beating.clear()

        def on_progress(self, event: dict[str, Any]) -> None:
            raise AssertionError(event)

    def trained(_: Path, out: Path, **__: object) -> int:
        make_record(out, "record-1", "aws")
        return 0

    def publish(*arguments: Any) -> None:
        handed_in.append(bool(beating))
        published(*arguments)

    published = module.publish_record
    monkeypatch.setenv("PLUMBLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "ProgressReporter", Heart)
    monkeypatch.setattr(module, "run_training", trained)
    monkeypatch.setattr(module, "publish_record", publish)
    order = make_order(tmp_path)
    killed = tmp_path / "cache" / "work" / "record-0-killed"
    killed.mkdir(parents=True)
    (killed / ".plumbline-owner").touch()
    with disable_run_logger():
        assert module.train_and_publish.fn(order) == (0, "")
    assert handed_in == [True]
    assert CentralStore(open_store(order.outbox)).has_record("record-1")
    assert not list((tmp_path / "cache/work").iterdir())


def test_an_environment_that_cannot_train_is_the_trainings_last_line_and_no_failure_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flow run is `Misconfigured` then: the round shows this line, and starts no second training."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(tmp_path / "empty")
    monkeypatch.setenv("PLUMBLINE_CACHE", str(tmp_path / "cache"))
    # Its thread writes an artifact, for which there is no server here.
    monkeypatch.setattr(ProgressReporter, "_beat", lambda _: None)
    with disable_run_logger():
        code, line = module.train_and_publish.fn(make_order(tmp_path).replace(python=str(tmp_path / "empty")))
    assert code == ExitCode.USAGE
    assert line == f"{tmp_path}/empty: torch: is not installed (hint: the trainer needs torch 2.4 to 2.15)"


def test_refused_credentials_for_a_team_s_environment_are_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker stages its files, and the next attempt reads the credentials again, as a trainer of its own does."""

    def refused(*_: object, **__: object) -> int:
        raise AccessError("the token has expired", where="s3://data")

    monkeypatch.setenv("PLUMBLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ProgressReporter, "_beat", lambda _: None)
    monkeypatch.setattr(module, "run_training", refused)
    with disable_run_logger():
        found = module.train_and_publish.fn(make_order(tmp_path).replace(python=str(tmp_path / "env")))
    assert found == (ExitCode.INCONCLUSIVE, "s3://data: the token has expired")


def test_the_error_of_a_full_disk_names_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the alert's text: `[Errno 28] No space left on device` alone does not say which disk is full."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    order = make_order(tmp_path)
    monkeypatch.setenv("PLUMBLINE_CACHE", str(tmp_path / "cache"))
    reporter = SimpleNamespace(on_progress=print)
    monkeypatch.setattr(module, "ProgressReporter", lambda _: nullcontext(reporter))
    monkeypatch.setattr(module, "write_any_spec", full)
    with disable_run_logger(), pytest.raises(DiskFullError, match="no room left") as caught:
        module.train_and_publish.fn(order)
    assert caught.value.where == str(tmp_path / "cache")
    assert not list((tmp_path / "cache/work").iterdir())
