"""Small dataset, built once, and a memory store for publication."""

from __future__ import annotations

import pytest

from plumbline.data.datasets import build_dataset
from plumbline.schema.suite import DatasetSource
from tests.memory_store import MemoryStore


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews")
    source = DatasetSource(grammar_seed=7, train_rows=200, evaluation_rows=40, rows_per_shard=64, vocab_size=400)
    return folder, build_dataset(source, "reviews", "sequence-classification", folder)


@pytest.fixture
def store():
    return MemoryStore()
