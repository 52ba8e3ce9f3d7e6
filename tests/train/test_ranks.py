"""Processes of one training and the GPUs of their machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from plumbline.train import job as job_module
from plumbline.train import ranks as ranks_module
from plumbline.train.failure import TrainingFailedError
from plumbline.train.job import TrainJob
from plumbline.train.ranks import Ranks, join_ranks


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Present one GPU; return the backends with which processes join."""
    backends: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None if device.index < 1 else pytest.fail(str(device)))
    fake = SimpleNamespace(
        init_process_group=backends.append, get_rank=lambda: 1, new_group=lambda backend: backend,
        destroy_process_group=lambda: None,
    )  # fmt: skip
    monkeypatch.setattr(ranks_module, "dist", fake)
    return backends


@pytest.mark.parametrize(("processes", "backend", "missing"), [(2, "gloo", 1), (1, "nccl", 0)])
def test_processes_without_a_gpu_of_their_own_still_join(
    one_gpu: list[str], monkeypatch: pytest.MonkeyPatch, processes: int, backend: str, missing: int
) -> None:
    for name, value in {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": processes, "LOCAL_RANK": processes - 1}.items():
        monkeypatch.setenv(name, str(value))
    with join_ranks() as ranks:
        assert one_gpu == [backend]
        assert (ranks.device, ranks.num_missing) == (torch.device("cuda", 0), missing)


def test_two_processes_on_one_gpu_are_a_failure_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(job_module, "read_fingerprint", lambda *_: pytest.fail("not needed"))
    job = cast("TrainJob", SimpleNamespace(expected=None, platform="aws", out=tmp_path))
    crowded: Any = Ranks(0, 2, torch.device("cuda", 0), None, 1)
    monkeypatch.setattr(Ranks, "gather", lambda _, value: [value, ""])
    with pytest.raises(TrainingFailedError, match=r"^aws: gpus: found 1, 2 processes need one each$") as caught:
        job_module._check_machine(job, crowded)
    assert caught.value.code == "device"
    monkeypatch.setattr(Ranks, "gather", lambda _, value: [value, "accelerator: found cpu"])
    fits: Any = Ranks(0, 2, torch.device("cuda", 0), None, 0)
    with pytest.raises(TrainingFailedError, match=r"^aws: accelerator: found cpu$"):  # on the second machine
        job_module._check_machine(job, fits)
