"""Shipped roles and policies, enforced: a worker reads data, creates records, replaces checkpoints, and nothing else.

moto checks actions and resources, but no conditions. Azurite knows no roles: a SAS token of the same letters stands for
them. Google's roles and their condition are enforced by our own strict server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

from plumbline.central import fetch_record, publish_record
from plumbline.central.checkpoints import CheckpointExchange
from plumbline.digest import digest_bytes
from plumbline.errors import AccessError
from plumbline.stores import RetryPolicy, Store, open_store, read_bytes
from tests.contract.conftest import ACCOUNT, ACCOUNT_KEY, Servers, give_aws, give_azure, give_google
from tests.contract.records import make_record
from tests.faultserver.google import GoogleServer

INFRA = Path(__file__).resolve().parents[2] / "infra"
QUICK = RetryPolicy(attempts=1)
WORDS = {"DATA-BUCKET": "rights-data", "OUTBOX-BUCKET": "rights-outbox", "PREFIX": "prefix"}


def shipped(name: str) -> Any:
    """Return a file of `infra/` with its words in capitals replaced."""
    text = (INFRA / name).read_text("utf-8")
    for word, value in WORDS.items():
        text = text.replace(word, value)
    return json.loads(text)


def opened(url: str) -> Store:
    return open_store(url, policy=QUICK)


def is_refused(write: Any) -> bool:
    try:
        write()
    except AccessError:
        return True
    return False


def check_outbox(outbox: Store, folder: Path) -> None:
    """Publish a record, replace and clear a checkpoint; other writes are refused."""
    publish_record(outbox, make_record(folder / "record", "r-1", "aws"))
    assert fetch_record(outbox, "r-1", folder / "read").is_dir()
    exchange = CheckpointExchange(outbox, "job", folder / "checkpoint")
    (folder / "checkpoint").mkdir()
    for step in (500, 1000, 1500):
        tensors = b"step %d" % step
        (folder / "checkpoint" / "tensors.safetensors").write_bytes(tensors)
        (folder / "checkpoint" / "state.json").write_text(json.dumps({"tensors_sha256": digest_bytes(tensors)}))
        assert exchange.publish(), step
    assert CheckpointExchange(outbox, "job", folder / "next").fetch()
    assert (folder / "next" / "tensors.safetensors").read_bytes() == b"step 1500"
    exchange.clear()
    assert [outbox.stat(f"checkpoints/job/{slot}").size for slot in "ab"] == [0, 0]
    assert is_refused(lambda: outbox.delete("records/r-1/record.json"))


def check_data(data: Store) -> None:
    """Read a dataset; no write is allowed."""
    assert read_bytes(data, "shard") == b"rows"
    assert is_refused(lambda: data.create("new", b"rows"))
    assert is_refused(lambda: data.swap("shard", b"others", if_match=data.stat("shard").etag))
    assert is_refused(lambda: data.delete("shard"))


@pytest.fixture
def aws_worker(clean_environment: pytest.MonkeyPatch, servers: Servers) -> Iterator[None]:
    """Enforce the shipped policy on moto, with the credentials of the worker's role."""
    give_aws(clean_environment, servers.s3)
    s3, iam = boto3.client("s3"), boto3.client("iam")
    for bucket in ("rights-data", "rights-outbox"):
        s3.create_bucket(Bucket=bucket)
    s3.put_object(Bucket="rights-data", Key="prefix/shard", Body=b"rows")
    policy = shipped("aws/worker-policy.json")
    for statement in policy["Statement"]:
        statement.pop("Condition", None)
    role = iam.create_role(RoleName="plumbline-worker", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    iam.put_role_policy(RoleName="plumbline-worker", PolicyName="stores", PolicyDocument=json.dumps(policy))
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="night")["Credentials"]
    clean_environment.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
    clean_environment.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
    clean_environment.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
    requests.post(f"{servers.s3}/moto-api/reset-auth", data=b"0", timeout=10).raise_for_status()
    try:
        yield
    finally:
        requests.post(f"{servers.s3}/moto-api/reset-auth", data=b"inf", timeout=10).raise_for_status()


def test_a_worker_on_aws(aws_worker: None, tmp_path: Path) -> None:  # noqa: ARG001 - a fixture
    outbox = opened("s3://rights-outbox/prefix")
    check_outbox(outbox, tmp_path)
    check_data(opened("s3://rights-data/prefix"))
    for key in ("experiments/e/experiment.json", "other"):
        assert is_refused(lambda key=key: outbox.create(key, b"foreign")), key


def letters(role: dict[str, Any]) -> ContainerSasPermissions:
    """Return the permissions of a SAS token that allows the role's data actions, and listing."""
    actions = {action.rpartition("/blobs/")[2] for action in role["DataActions"]}
    assert actions <= {"read", "write", "add/action"}
    is_writer = "write" in actions
    return ContainerSasPermissions(read="read" in actions, list=True, write=is_writer, create=is_writer)


@pytest.mark.parametrize("kind", ["outbox", "data"])
def test_a_worker_on_azure(clean_environment: pytest.MonkeyPatch, servers: Servers, tmp_path: Path, kind: str) -> None:
    endpoint = f"{servers.blob}/{ACCOUNT}"
    container = BlobServiceClient(endpoint, credential=ACCOUNT_KEY).create_container(f"rights-{kind}")
    container.upload_blob("prefix/shard", b"rows")
    reader = {"DataActions": ["Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"]}
    token = generate_container_sas(
        ACCOUNT, f"rights-{kind}", account_key=ACCOUNT_KEY, expiry=datetime.now(UTC) + timedelta(hours=1),
        permission=letters(shipped("azure/worker-outbox-role.json") if kind == "outbox" else reader),
    )  # fmt: skip
    give_azure(clean_environment, f"{servers.blob}/{{account}}")
    clean_environment.delenv("AZURE_STORAGE_KEY")
    clean_environment.setenv("AZURE_STORAGE_SAS_TOKEN", token)
    store = opened(f"az://{ACCOUNT}/rights-{kind}/prefix")
    check_outbox(store, tmp_path) if kind == "outbox" else check_data(store)


def grant(role: dict[str, Any], condition: dict[str, Any] | None = None) -> tuple[frozenset[str], str]:
    """Return the role's permissions with the prefix that its condition demands."""
    prefix = ""
    if condition is not None:
        expression = r'resource\.name\.startsWith\("projects/_/buckets/rights-outbox/objects/([^"]+)"\)'
        match = re.fullmatch(expression, condition["expression"])
        assert match is not None, condition
        prefix = match[1]
    return frozenset(role["includedPermissions"]), prefix


@pytest.fixture
def google(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[GoogleServer]:
    with GoogleServer(request.param) as server:
        give_google(clean_environment, server, tmp_path)
        yield server


@pytest.mark.parametrize("google", ["rights-outbox"], indirect=True)
def test_a_worker_on_google_cloud(google: GoogleServer, tmp_path: Path) -> None:
    google.grants = [
        grant(shipped("gcp/worker-outbox-role.json")),
        grant(shipped("gcp/worker-checkpoint-role.json"), shipped("gcp/checkpoints-condition.json")),
    ]
    outbox = opened("gs://rights-outbox/prefix")
    check_outbox(outbox, tmp_path)
    record = "records/r-1/record.json"
    assert is_refused(lambda: outbox.swap(record, b"others", if_match=outbox.stat(record).etag))


@pytest.mark.parametrize("google", ["rights-data"], indirect=True)
def test_the_data_of_a_worker_on_google_cloud(google: GoogleServer) -> None:
    google.objects["prefix/shard"] = (1, b"rows", "text/csv")
    # The predefined role `roles/storage.objectViewer`.
    google.grants = [(frozenset({"storage.objects.get", "storage.objects.list"}), "")]
    check_data(opened("gs://rights-data/prefix"))
