"""Records of two clouds in a third store; `tests/unit/night/central` has all that needs no server."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest

from plumbline.data.stores import ensure_object, open_store
from plumbline.night.central import CentralStore, gather, publish_record
from tests.contract.conftest import ACCOUNT, give_aws, give_azure
from tests.contract.records import make_record, orders_of


def test_two_clouds_gathered_into_a_third_store(
    clean_environment: pytest.MonkeyPatch, moto: str, azurite: str, tmp_path: Path
) -> None:
    give_aws(clean_environment, moto)
    give_azure(clean_environment, f"{azurite}/{{account}}")
    boto3.client("s3").create_bucket(Bucket="outbox-gather")
    aws, azure = open_store("s3://outbox-gather/plumbline"), open_store(f"az://{ACCOUNT}/outbox-gather/plumbline")
    azure.inner._client.create_container()  # type: ignore[attr-defined]
    outboxes = {"aws": aws, "azure": azure}
    for platform, outbox in outboxes.items():
        publish_record(outbox, make_record(tmp_path / platform, f"record-{platform}", platform))
        ensure_object(outbox, "records/record-stranger/rows.parquet", b"not ours")
    central = CentralStore(open_store(f"file://{tmp_path}/central"))
    result = gather(outboxes, orders_of({name: f"record-{name}" for name in outboxes}), central, tmp_path / "into")
    assert {name: entry.state for name, entry in result.items()} == {"aws": "complete", "azure": "complete"}
    assert central.list_records() == ["record-aws", "record-azure"]
