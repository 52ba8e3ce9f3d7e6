"""Roles and policies of the modules, enforced: a worker reads data, creates records and replaces checkpoints.

moto checks actions, and resources of S3 alone, but no conditions. Azurite knows no roles: a SAS token of the same
letters stands for them. Google's roles and their condition are enforced by our own strict server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

from plumbline.data.stores import RetryPolicy, Store, open_store, read_bytes
from plumbline.night.central import fetch_record, publish_record
from plumbline.night.central.outbox import CheckpointExchange
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import AccessError
from tests.contract.conftest import ACCOUNT, ACCOUNT_KEY, give_aws, give_azure, give_google
from tests.contract.records import make_record
from tests.faultserver.google import GoogleServer
from tests.shipped import STORES, aws_policy, azure_actions, google_grants

QUICK = RetryPolicy(attempts=1)
VALUES = {**{f"{store}_bucket": f"rights-{store}" for store in STORES}, "prefix": "prefix"}


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
    assert fetch_record(outbox, "r-1", folder / "read").folder.is_dir()
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


def check_keeper(store: Store) -> None:
    """Create, read and replace as the controller does; nothing may be deleted."""
    store.create("object", b"first")
    store.swap("object", b"second", if_match=store.stat("object").etag)
    assert read_bytes(store, "object") == b"second"
    assert is_refused(lambda: store.delete("object"))


@contextmanager
def aws_role(environment: pytest.MonkeyPatch, moto: str, identity: str) -> Iterator[None]:
    """Enforce the module's policy on moto, with the credentials of the identity's role."""
    give_aws(environment, moto)
    s3, iam = boto3.client("s3"), boto3.client("iam")
    for store in STORES:
        s3.create_bucket(Bucket=f"rights-{store}")
    s3.put_object(Bucket="rights-data", Key="prefix/shard", Body=b"rows")
    policy = aws_policy(identity, **VALUES)
    for statement in policy["Statement"]:
        statement.pop("Condition", None)
    role = iam.create_role(RoleName=f"rights-{identity}", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    iam.put_role_policy(RoleName=f"rights-{identity}", PolicyName="stores", PolicyDocument=json.dumps(policy))
    given = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="night")["Credentials"]
    environment.setenv("AWS_ACCESS_KEY_ID", given["AccessKeyId"])
    environment.setenv("AWS_SECRET_ACCESS_KEY", given["SecretAccessKey"])
    environment.setenv("AWS_SESSION_TOKEN", given["SessionToken"])
    requests.post(f"{moto}/moto-api/reset-auth", data=b"0", timeout=10).raise_for_status()
    try:
        yield
    finally:
        requests.post(f"{moto}/moto-api/reset-auth", data=b"inf", timeout=10).raise_for_status()
        give_aws(environment, moto)
        environment.delenv("AWS_SESSION_TOKEN")
        for store in STORES:
            keys = [{"Key": item["Key"]} for item in s3.list_objects_v2(Bucket=f"rights-{store}").get("Contents", ())]
            s3.delete_objects(Bucket=f"rights-{store}", Delete={"Objects": keys}) if keys else None
            s3.delete_bucket(Bucket=f"rights-{store}")


def test_a_worker_on_aws(clean_environment: pytest.MonkeyPatch, moto: str, tmp_path: Path) -> None:
    with aws_role(clean_environment, moto, "worker"):
        outbox = opened("s3://rights-outbox/prefix")
        check_outbox(outbox, tmp_path)
        check_data(opened("s3://rights-data/prefix"))
        for key in ("experiments/e/experiment.json", "other"):
            assert is_refused(lambda key=key: outbox.create(key, b"foreign")), key
        central = opened("s3://rights-central/prefix")
        assert is_refused(lambda: central.create("object", b"foreign"))
        assert is_refused(lambda: read_bytes(central, "object"))


def test_a_controller_on_aws(clean_environment: pytest.MonkeyPatch, moto: str) -> None:
    with aws_role(clean_environment, moto, "controller"):
        for store in STORES:
            check_keeper(opened(f"s3://rights-{store}/prefix"))
            assert is_refused(lambda store=store: opened(f"s3://rights-{store}/others").create("object", b"foreign"))


def letters(actions: set[str]) -> ContainerSasPermissions:
    """Return the permissions of a SAS token that allows a role's data actions, and listing."""
    allowed = {action.rpartition("/blobs/")[2] for action in actions}
    assert allowed <= {"read", "write", "add/action"}
    is_writer = "write" in allowed
    return ContainerSasPermissions(read="read" in allowed, list=True, write=is_writer, create=is_writer)


@pytest.mark.parametrize("identity", ["worker", "controller"])
@pytest.mark.parametrize("kind", STORES)
def test_an_identity_on_azure(
    clean_environment: pytest.MonkeyPatch, azurite: str, tmp_path: Path, kind: str, identity: str
) -> None:
    actions = azure_actions(identity, kind)
    if (identity, kind) == ("worker", "central"):
        assert actions == set()
        return
    endpoint = f"{azurite}/{ACCOUNT}"
    name = f"rights-{identity}-{kind}"
    container = BlobServiceClient(endpoint, credential=ACCOUNT_KEY).create_container(name)
    container.upload_blob("prefix/shard", b"rows")
    token = generate_container_sas(
        ACCOUNT, name, account_key=ACCOUNT_KEY, expiry=datetime.now(UTC) + timedelta(hours=1),
        permission=letters(actions),
    )  # fmt: skip
    give_azure(clean_environment, f"{azurite}/{{account}}")
    clean_environment.delenv("AZURE_STORAGE_KEY")
    clean_environment.setenv("AZURE_STORAGE_SAS_TOKEN", token)
    store = opened(f"az://{ACCOUNT}/{name}/prefix")
    if identity == "controller":
        check_keeper(store)
    else:
        check_outbox(store, tmp_path) if kind == "outbox" else check_data(store)


@pytest.fixture
def google(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[GoogleServer]:
    with GoogleServer(request.param) as server:
        give_google(clean_environment, server, tmp_path)
        yield server


@pytest.mark.parametrize("google", ["rights-outbox"], indirect=True)
def test_a_worker_on_google_cloud(google: GoogleServer, tmp_path: Path) -> None:
    assert google_grants("worker", "central") == []
    google.grants = google_grants("worker", "outbox", **VALUES)
    outbox = opened("gs://rights-outbox/prefix")
    check_outbox(outbox, tmp_path)
    record = "records/r-1/record.json"
    assert is_refused(lambda: outbox.swap(record, b"others", if_match=outbox.stat(record).etag))


@pytest.mark.parametrize("google", ["rights-data"], indirect=True)
def test_the_data_of_a_worker_on_google_cloud(google: GoogleServer) -> None:
    google.objects["prefix/shard"] = (1, b"rows", "text/csv")
    google.grants = google_grants("worker", "data")
    check_data(opened("gs://rights-data/prefix"))


@pytest.mark.parametrize("google", ["rights-central"], indirect=True)
@pytest.mark.parametrize("kind", STORES)
def test_a_controller_on_google_cloud(google: GoogleServer, kind: str) -> None:
    google.grants = google_grants("controller", kind)
    central = opened("gs://rights-central/prefix")
    central.create("object", b"first")
    central.swap("object", b"second", if_match=central.stat("object").etag)
    assert read_bytes(central, "object") == b"second"
