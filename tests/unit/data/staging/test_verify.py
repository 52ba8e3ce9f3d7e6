"""`data verify` distinguishes wrong datasets from unreachable stores."""

from __future__ import annotations

import pytest

from plumbline.data.datasets import build_dataset, publish, verify_dataset
from plumbline.data.stores.protocol import StoreUnavailableError
from plumbline.schema.errors import ExitCode
from plumbline.schema.suite import DatasetSource
from tests.memory_store import MemoryStore


class Away(MemoryStore):
    """Store that loses its connection after the manifest."""

    def open(self, key, **options):
        if key.endswith(".parquet"):
            raise StoreUnavailableError("connection reset", where=self.url)
        return super().open(key, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dataset")
    source = DatasetSource(grammar_seed=1, train_rows=32, evaluation_rows=16, rows_per_shard=16, vocab_size=128)
    build_dataset(source, "reviews", "sequence-classification", folder)
    return folder


def test_a_store_that_goes_away_is_no_fault_of_the_dataset(folder):
    whole = MemoryStore()
    publish(folder, whole)
    assert verify_dataset(whole, "reviews").problems == {}
    away = Away()
    for result in list(whole.list()):
        with whole.open(result.key) as reader:
            data = bytearray(result.size)
            reader.readinto(memoryview(data))
        away.create(result.key, bytes(data))
    with pytest.raises(StoreUnavailableError) as raised:
        verify_dataset(away, "reviews")
    assert raised.value.exit_code == ExitCode.INCONCLUSIVE
