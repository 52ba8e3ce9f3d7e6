"""A training waits for the batch of a worker with a limit, and says why it ends."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from plumbline.schema import limits
from plumbline.schema.errors import UnavailableError
from plumbline.train.batches import make_loader
from tests.train.forked_ranks import in_new_process


class Rows(Dataset[Any]):
    """Rows whose second batch does not arrive."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __len__(self) -> int:
        return 4

    def __getitems__(self, positions: list[int]) -> dict[str, Any]:
        if positions[0] and self.way == "lost":
            time.sleep(30)
        if positions[0] and self.way == "killed":
            os.kill(os.getpid(), signal.SIGBUS)
        return {"ids": np.array(positions)}


@pytest.mark.parametrize("way", ["lost", "killed", "whole"])
def test_a_batch_that_does_not_arrive_ends_the_training_and_names_shared_memory(way: str) -> None:
    in_new_process(_load, way)


def _load(way: str) -> None:
    if way == "lost":
        limits.BATCH_SECONDS = 1
    batches = make_loader(Rows(way), 2, torch.device("cpu"), num_workers=1)
    if way == "whole":
        assert [batch["ids"].tolist() for batch in batches] == [[0, 1], [2, 3]]
        return
    with pytest.raises(UnavailableError, match="no batch arrived within") as caught:
        list(batches)
    assert "/dev/shm" in caught.value.hint  # noqa: S108 - a text
