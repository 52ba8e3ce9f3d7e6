"""Doctor on real stores: wrong credentials, permissions and buckets, with hints."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from azure.storage.blob import AccountSasPermissions, BlobServiceClient, ResourceTypes, generate_account_sas

from plumbline.cli.main import main
from plumbline.local.servers import reserve_port
from plumbline.local.services import answers
from plumbline.night.doctor.checks import CheckResult
from plumbline.night.doctor.stores import Visit, examine_store
from plumbline.schema.manifest import DataFile, Manifest, Shard
from tests.contract.conftest import ACCOUNT, ACCOUNT_KEY
from tests.flows.small_suite import small_suite, write_suite
from tests.shipped import aws_policy

REGION = "us-east-1"
Keys = tuple[str, str]
FILES = ("train-0.parquet", "evaluation-0.parquet", "tokenizer.json")


def manifest() -> bytes:
    shard = Shard(key="train-0.parquet", size=1 << 20, sha256="0" * 64, num_rows=8, rows_sha256="0" * 64)
    evaluation = shard.replace(key="evaluation-0.parquet")
    tokenizer = DataFile(key="tokenizer.json", size=10, sha256="0" * 64)
    shape = {"tokenizer": tokenizer, "train": (shard,), "evaluation": (evaluation,), "vocab_size": 64, "num_labels": 2}
    return Manifest(name="reviews", task="sequence-classification", **shape).model_dump_json().encode()


@dataclass
class Aws:
    """S3 endpoint that checks signatures and policies, with several identities."""

    url: str
    worker: Keys
    reader: Keys
    writer: Keys


def user(iam: Any, name: str, policy: object) -> Keys:
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName=name, PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName=name)["AccessKey"]
    return key["AccessKeyId"], key["SecretAccessKey"]


def allow(*actions: str) -> object:
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": list(actions), "Resource": "*"}]}


@pytest.fixture(scope="module")
def strict_aws() -> Iterator[Aws]:
    """Start moto with IAM enforcement, in a separate process."""
    port = reserve_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not answers(url):
            assert process.poll() is None
        access = {
            "endpoint_url": url, "region_name": REGION, "aws_access_key_id": "any", "aws_secret_access_key": "any",
        }  # fmt: skip
        s3, iam = boto3.client("s3", **access), boto3.client("iam", **access)
        for bucket in ("data", "outbox"):
            s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket="data", Key="team/reviews/manifest.json", Body=manifest())
        for key in FILES:
            s3.put_object(Bucket="data", Key=f"team/reviews/{key}", Body=b"bytes")
        policy = aws_policy("worker", data_bucket="data", outbox_bucket="outbox", prefix="team")
        worker = user(iam, "worker", policy)
        reader = user(iam, "reader", allow("s3:GetObject", "s3:ListBucket"))
        writer = user(iam, "writer", allow("s3:PutObject"))
        request = urllib.request.Request(f"{url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})  # noqa: S310 - our own server
        urllib.request.urlopen(request).close()  # noqa: S310 - our own server
        yield Aws(url, worker, reader, writer)
    finally:
        process.terminate()
        process.wait(120)


def visit_aws(environment: pytest.MonkeyPatch, aws: Aws, keys: Keys, bucket: str, prefix: str = "team") -> CheckResult:
    environment.setenv("AWS_ENDPOINT_URL", aws.url)
    environment.setenv("AWS_ACCESS_KEY_ID", keys[0])
    environment.setenv("AWS_SECRET_ACCESS_KEY", keys[1])
    if bucket == "data":
        return examine_store(Visit("data", f"s3://data/{prefix}", "read", "reviews"))
    return examine_store(Visit("outbox", f"s3://{bucket}/{prefix}", "write and read"))


def test_the_policy_of_a_worker_is_enough_for_every_visit(
    clean_environment: pytest.MonkeyPatch, strict_aws: Aws
) -> None:
    data = visit_aws(clean_environment, strict_aws, strict_aws.worker, "data")
    assert (data.well, data.size) == (True, 2 * (1 << 20) + 10)
    assert visit_aws(clean_environment, strict_aws, strict_aws.worker, "outbox").well


@pytest.mark.parametrize("bucket", ["data", "outbox"])
@pytest.mark.parametrize("secret_alone", [True, False], ids=["secret", "key"])
def test_s3_wrong_credentials(
    clean_environment: pytest.MonkeyPatch, strict_aws: Aws, bucket: str, *, secret_alone: bool
) -> None:
    keys = (strict_aws.worker[0] if secret_alone else "AKIAIOSFODNN7EXAMPLE", "wrong")
    result = visit_aws(clean_environment, strict_aws, keys, bucket)
    assert (result.well, result.code) == (False, 2)
    assert f"s3://{bucket}/team: wrong credentials: refused: HTTP 403" in result.what
    assert ("SignatureDoesNotMatch" if secret_alone else "InvalidAccessKeyId") in result.what
    assert "AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role" in result.hint


def test_s3_wrong_permissions(clean_environment: pytest.MonkeyPatch, strict_aws: Aws) -> None:
    for keys, bucket, needs in (
        (strict_aws.reader, "outbox", "write and read"),
        (strict_aws.writer, "outbox", "write and read"),
        (strict_aws.writer, "data", "read"),
    ):
        result = visit_aws(clean_environment, strict_aws, keys, bucket)
        assert (result.well, result.code) == (False, 2)
        assert result.what == f"s3://{bucket}/team: wrong permissions: refused: HTTP 403 AccessDenied: Access Denied"
        assert result.hint.startswith(f"allow this environment's identity to {needs} s3://{bucket}/team (infra/aws")
    # Another's prefix in the right bucket.
    assert "wrong permissions" in visit_aws(clean_environment, strict_aws, strict_aws.worker, "outbox", "others").what


def test_s3_missing_bucket_and_missing_dataset(clean_environment: pytest.MonkeyPatch, strict_aws: Aws) -> None:
    everything = strict_aws.writer
    missing = visit_aws(clean_environment, strict_aws, everything, "nowhere")
    assert (missing.what, missing.code) == ("s3://nowhere/team: no such bucket", 2)
    assert missing.hint == "create it, or correct the suite: s3://nowhere/team"
    unpublished = visit_aws(clean_environment, strict_aws, strict_aws.reader, "data", "empty")
    assert unpublished.what == "s3://data/empty: contains no dataset reviews"
    assert "plumbline deploy SUITE --publish" in unpublished.hint


@pytest.fixture
def blob(clean_environment: pytest.MonkeyPatch, azurite: str) -> pytest.MonkeyPatch:
    """Create a container with a dataset in Azurite."""
    clean_environment.setenv("PLUMBLINE_AZURE_ENDPOINT", f"{azurite}/{{account}}")
    with BlobServiceClient(f"{azurite}/{ACCOUNT}", {"account_name": ACCOUNT, "account_key": ACCOUNT_KEY}) as all_:
        container = all_.get_container_client("doctor")
        if not container.exists():
            container.create_container()
        container.upload_blob("team/reviews/manifest.json", manifest(), overwrite=True)
        for key in FILES:
            container.upload_blob(f"team/reviews/{key}", b"bytes", overwrite=True)
    return clean_environment


def visit_azure(container: str = "doctor", needs: Any = "write and read", dataset: str = "") -> CheckResult:
    return examine_store(Visit("outbox", f"az://{ACCOUNT}/{container}/team", needs, dataset))


def token(*, expired: bool = False, **allowed: bool) -> str:
    now = datetime.now(UTC)
    expiry = now + timedelta(hours=-1 if expired else 1)
    kinds, rights = ResourceTypes(object=True, container=True), AccountSasPermissions(**allowed)
    start = now - timedelta(hours=2)
    return generate_account_sas(ACCOUNT, ACCOUNT_KEY, kinds, rights, expiry, start=start, protocol="https,http")


def test_azure_wrong_credentials(blob: pytest.MonkeyPatch) -> None:
    blob.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    assert visit_azure().well
    assert visit_azure(needs="read", dataset="reviews").well
    blob.setenv("AZURE_STORAGE_KEY", "d3Jvbmc=")
    for result in (visit_azure(), visit_azure(needs="read", dataset="reviews")):
        assert (result.well, result.code) == (False, 2)
        assert "wrong credentials: refused: " in result.what
        # Azure itself says AuthenticationFailed.
        assert re.search("AuthorizationFailure|AuthenticationFailed", result.what)
        assert "AZURE_STORAGE_KEY" in result.hint
    blob.delenv("AZURE_STORAGE_KEY")
    blob.setenv("AZURE_STORAGE_SAS_TOKEN", token(expired=True, read=True, write=True, create=True))
    ended = visit_azure()
    assert "the SAS token has expired at" in ended.what
    assert "renew the SAS token" in ended.hint


def test_azure_without_any_credentials(clean_environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # The first of the identities' sources alone: the others ask the network.
    clean_environment.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    result = visit_azure()
    assert result.what == f"az://{ACCOUNT}/doctor/team: wrong credentials: no usable credentials"
    assert "or the machine's identity" in result.hint
    assert caplog.messages == []


def test_azure_wrong_permissions(blob: pytest.MonkeyPatch) -> None:
    blob.setenv("AZURE_STORAGE_SAS_TOKEN", token(read=True, list=True))
    assert visit_azure(needs="read", dataset="reviews").well
    result = visit_azure()
    assert (result.well, result.code) == (False, 2)
    assert "wrong permissions: refused: " in result.what
    assert "AuthorizationPermissionMismatch" in result.what
    assert "write and read az://" in result.hint
    assert "infra/azure" in result.hint
    assert "sig=" not in result.what + result.hint
    blob.setenv("AZURE_STORAGE_SAS_TOKEN", token(write=True, create=True))
    assert "wrong permissions" in visit_azure().what


def test_a_worker_that_may_only_create_is_well_however_often_the_doctor_comes(blob: pytest.MonkeyPatch) -> None:
    blob.setenv("AZURE_STORAGE_SAS_TOKEN", token(read=True, create=True))
    for _ in range(2):
        assert visit_azure().well
    assert "wrong permissions" in visit_azure(needs="write, replace and read").what


def test_azure_missing_container(blob: pytest.MonkeyPatch) -> None:
    blob.setenv("AZURE_STORAGE_KEY", ACCOUNT_KEY)
    for needs, dataset in (("write and read", ""), ("read", "reviews")):
        assert visit_azure("nowhere", needs, dataset).what == f"az://{ACCOUNT}/nowhere/team: no such container"
    assert "contains no dataset other" in visit_azure(needs="read", dataset="other").what


@pytest.mark.usefixtures("aws")
def test_publishing_into_a_bucket_that_does_not_exist_ends_before_anything_is_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After 67 s of building it ended with "no such object"."""
    suite, state = small_suite(tmp_path, "team", ("onprem",)), tmp_path / "state"
    b = suite.platforms["onprem"].replace(data="s3://not-made/data", outbox=f"file://{tmp_path}/outbox-b")
    path = write_suite(suite.replace(platforms={**suite.platforms, "b": b}), tmp_path)
    assert main(["deploy", str(path), "--publish", "--state", str(state)]) == 2
    assert capsys.readouterr().err == (
        "plumbline: b: data: s3://not-made/data: no such bucket "
        "(hint: create it, or correct the suite: s3://not-made/data)\n"
    )
    assert not state.exists()
