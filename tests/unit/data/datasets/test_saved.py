"""Folders that `save_to_disk` of the library `datasets` wrote."""

from __future__ import annotations

import datasets
import pytest

from plumbline.data.datasets import build_dataset, row_origins
from plumbline.data.stores import open_store
from plumbline.night.prepare import content_marks
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.suite import DatasetSource

NAMES = ["neutral", "bad", "good"]
FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=NAMES)})


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def rows(first, count):
    numbers = range(first, first + count)
    values = {"text": [f"row {i}" for i in numbers], "label": [i % 3 for i in numbers]}
    return datasets.Dataset.from_dict(values, features=FEATURES)


def build(path, out, **keys):
    source = DatasetSource(path=str(path), vocab_size=100, **keys)
    return build_dataset(source, "mine", "sequence-classification", out)


def test_a_saved_dataset_is_read_with_its_own_class_names_locally_and_from_a_store(tmp_path):
    rows(0, 60).select(range(59, 29, -1)).save_to_disk(tmp_path / "in" / "saved", num_shards=3)
    manifest = build(tmp_path / "in" / "saved", tmp_path / "out")
    assert [entry.name for entry in manifest.classes] == NAMES
    assert sum(shard.num_rows for shard in manifest.shards) == 30
    assert manifest.receipt.read_as == ("the library datasets",)
    assert build(f"file://{tmp_path}/in/saved", tmp_path / "again").digest == manifest.digest
    assert len(content_marks(str(tmp_path / "in" / "saved"))) == 5


def test_the_splits_of_a_saved_dictionary_stay_apart_and_can_be_chosen(tmp_path):
    saved = datasets.DatasetDict({"train": rows(0, 30), "test": rows(30, 12), "extra": rows(42, 15)})
    saved.save_to_disk(tmp_path / "saved")
    manifest = build(tmp_path / "saved", tmp_path / "out")
    assert [shard.num_rows for shard in manifest.shards] == [30, 12]
    assert manifest.receipt.notes == ("unused: extra",)
    other = build(tmp_path / "saved", tmp_path / "other", split="extra", evaluation_split="train")
    assert [shard.num_rows for shard in other.shards] == [15, 30]
    with pytest.raises(ConfigurationError, match="split: the split 'tran' does not exist"):
        build(tmp_path / "saved", tmp_path / "refused", split="tran")


def test_a_damaged_folder_is_refused_in_one_line(tmp_path):
    rows(0, 30).save_to_disk(tmp_path / "saved")
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"no arrow")
    with pytest.raises(InvalidInputError, match="cannot be read as a saved dataset") as caught:
        build(tmp_path / "saved", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_the_row_of_a_saved_dataset_is_named_by_its_split(tmp_path):
    rows(0, 30).save_to_disk(tmp_path / "saved")
    manifest = build(tmp_path / "saved", tmp_path / "store" / "mine")
    places = row_origins(open_store(f"file://{tmp_path}/store"), "mine", manifest.digest, [0])
    assert str(places[0]).startswith("saved, train, row ")
