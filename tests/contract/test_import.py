"""Import from a bucket: a file, a folder and a glob give the same rows as on disk."""

from __future__ import annotations

import uuid

import boto3
import datasets
import pytest

from plumbline.data.datasets import build_dataset
from plumbline.data.stores import open_store
from plumbline.schema.errors import AccessError, PlumblineError
from plumbline.schema.suite import DatasetSource
from tests.unit.data.datasets.people_files import ROWS, SHARDS, delimited


@pytest.fixture
def bucket(aws):  # noqa: ARG001 - it sets the environment
    name = f"data-{uuid.uuid4().hex[:12]}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    for key in ("mine/", "mine/shards/", "mine/shards/data/"):  # the console's "Create folder"
        client.put_object(Bucket=name, Key=key, Body=b"")
    store = open_store(f"s3://{name}")
    store.create("mine/rows.csv", delimited(ROWS))
    for key, data in SHARDS.items():
        store.create(f"mine/shards/{key}", data)
    store.create("mine/shards/README.md", b"# mine")
    return f"s3://{name}"


def content(source, out):
    source = DatasetSource(path=source, vocab_size=300)
    return build_dataset(source, "mine", "sequence-classification", out).content_sha256


def test_the_same_rows_come_out_of_a_bucket_in_every_layout(bucket, tmp_path):
    (tmp_path / "rows.csv").write_bytes(delimited(ROWS))
    sources = (
        str(tmp_path / "rows.csv"), f"file://{tmp_path}/rows.csv", f"{bucket}/mine/rows.csv", f"{bucket}/mine/shards",
        f"{bucket}/mine/shards/data/*.parquet", f"{bucket}/mine/**.parquet",
    )  # fmt: skip
    digests = {source: content(source, tmp_path / f"out-{number}") for number, source in enumerate(sources)}
    assert len(set(digests.values())) == 1, digests
    assert not list(tmp_path.glob("out-*/.download-*"))


def test_a_folder_of_save_to_disk_is_read_from_a_bucket(bucket, tmp_path):
    datasets.disable_progress_bars()
    values = {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(values)}).save_to_disk(tmp_path / "saved")
    store = open_store(bucket)
    for file in (tmp_path / "saved").rglob("*"):
        if file.is_file():
            store.create(f"mine/saved/{file.relative_to(tmp_path / 'saved').as_posix()}", file.read_bytes())
    assert content(f"{bucket}/mine/saved", tmp_path / "out") == content(str(tmp_path / "saved"), tmp_path / "again")


@pytest.mark.parametrize("place", ["mine/other.csv", "nothing", "mine/shards/*.csv"])
def test_nothing_there_is_one_line(bucket, tmp_path, place):
    with pytest.raises(PlumblineError) as caught:
        content(f"{bucket}/{place}", tmp_path / "out")
    assert f"{bucket}/{place}" in str(caught.value)
    assert "contains no data file" in str(caught.value)


def test_an_archived_file_is_named_as_such(bucket, tmp_path):
    client, name = boto3.client("s3"), bucket.removeprefix("s3://")
    client.put_object(Bucket=name, Key="cold/rows.csv", Body=delimited(ROWS), StorageClass="GLACIER")
    with pytest.raises(AccessError) as caught:
        content(f"{bucket}/cold", tmp_path / "out")
    assert str(caught.value) == (
        f"{bucket}/cold: rows.csv: is archived: HTTP 403 InvalidObjectState: The operation is not valid for the "
        "object's storage class (hint: restore the object first (S3 Glacier), or copy it to a storage class that can "
        "be read at once)"
    )
