"""Buckets with company settings: encryption, requester pays, retention, folders."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import (
    ObjectExistsError,
    ObjectMissingError,
    PreconditionFailedError,
    RetryPolicy,
    StoreUnavailableError,
    open_store,
    presign,
    read_bytes,
)
from plumbline.data.stores.s3 import S3Store
from plumbline.night.doctor.checks import explain_refusal
from plumbline.schema.errors import AccessError, ConfigurationError, Refusal
from tests.contract.conftest import ACCOUNT, give_aws, give_azure, make_bucket, make_container
from tests.http_server import Handler, serving

ONCE = RetryPolicy(attempts=1)


class Refusing:
    """Service that refuses every request, and keeps the headers."""

    def __init__(self) -> None:
        self.status, self.code, self.is_json = 200, "", False
        self.message, self.detail = "m", ""
        self.seen: list[dict[str, str]] = []


@pytest.fixture
def refusing(clean_environment: pytest.MonkeyPatch) -> Iterator[Refusing]:
    state = Refusing()

    class Service(Handler):
        def answer(self) -> None:
            self.body()
            state.seen.append({name.lower(): value for name, value in self.headers.items()})
            said = f"<Message>{state.message}</Message>"
            if state.detail:
                said += f"<AuthenticationErrorDetail>{state.detail}</AuthenticationErrorDetail>"
            body = f"<Error><Code>{state.code}</Code>{said}</Error>".encode() if state.code else b""
            if state.is_json:
                error = {"code": 400, "message": state.message, "errors": [{"reason": state.code}]}
                body = json.dumps({"error": error}).encode()
            headers = {"ETag": '"1"', "x-ms-error-code": state.code, "Content-Type": "application/xml"}
            self.reply(state.status, body, headers)

    with serving(Service) as url:
        give_aws(clean_environment, url)
        give_azure(clean_environment, f"{url}/{{account}}")
        clean_environment.setenv("STORAGE_EMULATOR_HOST", url)
        yield state


def test_encryption_and_payment_that_a_bucket_demands_are_asked_for(
    refusing: Refusing, clean_environment: pytest.MonkeyPatch
) -> None:
    store = open_store("s3://bucket", policy=ONCE)
    store.create("plain", b"")
    assert not {"x-amz-request-payer", "x-amz-server-side-encryption"} & refusing.seen[-1].keys()
    clean_environment.setenv("PLUMBLINE_S3_REQUEST_PAYER", "requester")
    clean_environment.setenv("PLUMBLINE_S3_SSE", "aws:kms")
    clean_environment.setenv("PLUMBLINE_S3_KMS_KEY_ID", "key-1")
    store.create("key", b"")
    assert refusing.seen[-1]["x-amz-request-payer"] == "requester"
    assert refusing.seen[-1]["x-amz-server-side-encryption"] == "aws:kms"
    assert refusing.seen[-1]["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1"
    store.delete("key")
    assert refusing.seen[-1]["x-amz-request-payer"] == "requester"
    read_bytes(store, "key")
    assert refusing.seen[-1]["x-amz-request-payer"] == "requester"
    assert "x-amz-request-payer" in refusing.seen[-1]["authorization"].partition("SignedHeaders=")[2]


def test_an_encrypted_bucket_is_like_any_other(moto: str, clean_environment: pytest.MonkeyPatch) -> None:
    client = make_bucket(clean_environment, moto, "encrypted")
    clean_environment.setenv("PLUMBLINE_S3_SSE", "aws:kms")
    store = open_store("s3://encrypted/x")
    store.swap("key", b"two", if_match=store.create("key", b"one").etag)
    assert read_bytes(store, "key") == b"two"
    assert client.head_object(Bucket="encrypted", Key="x/key")["ServerSideEncryption"] == "aws:kms"


def test_of_two_uploads_in_parts_one_wins_and_leaves_nothing_of_the_other(
    moto: str, clean_environment: pytest.MonkeyPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_bucket(clean_environment, moto, "parts", ObjectLockEnabledForBucket=True)
    monkeypatch.setattr(S3Store, "multipart_bytes", 1 << 20)
    for name, byte in (("first", b"1"), ("second", b"2")):
        (tmp_path / name).write_bytes(byte * (6 << 20))
    store = open_store("s3://parts/x")
    store.create("key", tmp_path / "first")
    with pytest.raises(ObjectExistsError):
        store.create("key", tmp_path / "second")
    assert read_bytes(store, "key") == b"1" * (6 << 20)
    assert "Uploads" not in client.list_multipart_uploads(Bucket="parts")


S3, AZURE, GOOGLE = "s3://bucket", f"az://{ACCOUNT}/box", "gs://bucket"


@pytest.mark.parametrize(
    ("url", "status", "code", "kind", "words"),
    [
        (S3, 501, "NotImplemented", ConfigurationError, "must support conditional writes"),
        (S3, 400, "KMS.DisabledException", ConfigurationError, "HTTP 400 KMS.DisabledException"),
        (S3, 403, "AccessDenied", AccessError, "refused: HTTP 403 AccessDenied"),
        (S3, 409, "ConditionalRequestConflict", StoreUnavailableError, "HTTP 409"),
        (S3, 408, "", StoreUnavailableError, "HTTP 408"),
        (S3, 412, "PreconditionFailed", PreconditionFailedError, "has changed"),
        (AZURE, 409, "BlobImmutableDueToPolicy", ConfigurationError, "immutability policy"),
        (AZURE, 409, "BlobImmutableDueToLegalHold", ConfigurationError, "legal hold"),
        (AZURE, 412, "LeaseIdMissing", ConfigurationError, "or a lease protects the object"),
        (AZURE, 409, "SnapshotsPresent", ConfigurationError, "the blob has snapshots"),
        (AZURE, 409, "ResourceTypeMismatch", ConfigurationError, "a folder or a different kind of blob"),
        (AZURE, 409, "ContainerBeingDeleted", StoreUnavailableError, "HTTP 409 ContainerBeingDeleted"),
        (AZURE, 409, "InvalidBlobType", ConfigurationError, "different kind of blob"),
        (AZURE, 403, "AuthorizationPermissionMismatch", AccessError, "AuthorizationPermissionMismatch"),
        (AZURE, 412, "ConditionNotMet", PreconditionFailedError, "has changed"),
        (GOOGLE, 403, "retentionPolicyNotMet", AccessError, "retention or hold protects"),
        (GOOGLE, 403, "objectUnderActiveHold", AccessError, "retention or hold protects"),
        (GOOGLE, 400, "required", ConfigurationError, "GOOGLE_CLOUD_QUOTA_PROJECT"),
        (GOOGLE, 403, "forbidden", AccessError, "refused: HTTP 403 forbidden"),
        (GOOGLE, 429, "rateLimitExceeded", StoreUnavailableError, "HTTP 429"),
        (GOOGLE, 412, "conditionNotMet", PreconditionFailedError, "has changed"),
    ],
)
def test_what_a_cloud_refuses_is_one_line(  # noqa: PLR0917 - a table
    refusing: Refusing, url: str, status: int, code: str, kind: Any, words: str
) -> None:
    refusing.status, refusing.code, refusing.is_json = status, code, url == GOOGLE
    with pytest.raises(kind, match=words) as caught:
        # Below the retry policy, which would make an end of what may pass.
        open_store(url).inner.swap("key", b"", if_match="1")  # type: ignore[attr-defined]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "status", "code", "refusal"),
    [
        (S3, 403, "AccessDenied", Refusal.PERMISSIONS),
        (S3, 403, "SignatureDoesNotMatch", Refusal.CREDENTIALS),
        (S3, 400, "ExpiredToken", Refusal.ENDED),
        (S3, 403, "RequestTimeTooSkewed", Refusal.CLOCK),
        (S3, 403, "InvalidObjectState", Refusal.ARCHIVED),
        (AZURE, 403, "AuthorizationPermissionMismatch", Refusal.PERMISSIONS),
        (AZURE, 403, "AuthenticationFailed", Refusal.CREDENTIALS),
        (AZURE, 401, "InvalidAuthenticationInfo", Refusal.CREDENTIALS),
        (AZURE, 400, "InvalidAuthenticationInfo", Refusal.CREDENTIALS),
        (AZURE, 403, "AccountIsDisabled", Refusal.UNKNOWN),
        (AZURE, 409, "BlobArchived", Refusal.ARCHIVED),
        (AZURE, 409, "BlobBeingRehydrated", Refusal.ARCHIVED),
        (GOOGLE, 401, "authError", Refusal.CREDENTIALS),
        (GOOGLE, 403, "forbidden", Refusal.PERMISSIONS),
        (GOOGLE, 403, "retentionPolicyNotMet", Refusal.UNKNOWN),
    ],
)
def test_a_refusal_is_typed_by_the_services_code_for_reads_and_writes(
    refusing: Refusing, url: str, status: int, code: str, refusal: Refusal
) -> None:
    refusing.status, refusing.code, refusing.is_json = status, code, url.startswith("gs:")
    store = open_store(url, policy=ONCE)
    for use in (lambda: read_bytes(store, "key"), lambda: store.create("key", b""), lambda: store.stat("key")):
        with pytest.raises(AccessError, match=code) as caught:
            use()
        assert caught.value.refusal is refusal
        archived = refusal is Refusal.ARCHIVED
        assert (f"is archived: HTTP {status} {code}" in str(caught.value)) == archived
        assert not (archived and "credentials" in str(caught.value))


ENDED, CLOCK, KEY = "the session has ended: ", "start a time service here", "the use of the key that encrypts the "
SIGNATURE = "c2lnbmF0dXJlLW9mLXRoZS1yZXF1ZXN0"
FORBIDDEN = "Server failed to authenticate the request. Make sure the value of Authorization header is correct."
OUTSIDE = (
    "Signature not valid in the specified time frame: Start [Mon, 23 Nov 2026 00:00:00 GMT] - "
    "Expiry [Tue, 24 Nov 2026 00:00:00 GMT] - Current [Fri, 27 Nov 2026 00:00:00 GMT]"
)


@pytest.mark.parametrize(
    ("url", "code", "message", "detail", "refusal", "hint"),
    [
        ("s3://bucket", "ExpiredToken", "The provided token has expired.", "", Refusal.ENDED, ENDED),
        ("s3://bucket", "RequestTimeTooSkewed", "The difference is too large.", "", Refusal.CLOCK, CLOCK),
        (
            "s3://bucket", "AccessDenied", "User: arn:aws:iam::1:user/x is not authorized to perform: kms:Decrypt", "",
            Refusal.KEY, KEY,
        ),
        (
            f"az://{ACCOUNT}/box", "AuthenticationFailed", FORBIDDEN, OUTSIDE, Refusal.ENDED, ENDED,
        ),
        (
            f"az://{ACCOUNT}/box", "AuthenticationFailed", FORBIDDEN,
            "Request date header too old: 'Fri, 27 Nov 2026 00:00:00 GMT'", Refusal.CLOCK, CLOCK,
        ),
        (
            f"az://{ACCOUNT}/box", "KeyVaultAccessTokenCannotBeAcquired", "The key vault refuses.", "",
            Refusal.KEY, KEY,
        ),
        ("gs://bucket", "authError", "Request had expired credentials.", "", Refusal.ENDED, ENDED),
        ("gs://bucket", "forbidden", "Permission denied on Cloud KMS key.", "", Refusal.KEY, KEY),
    ],
)  # fmt: skip
def test_a_cause_has_the_services_sentence_and_the_same_words_on_every_cloud(  # noqa: PLR0917 - a table
    refusing: Refusing, url: str, code: str, message: str, detail: str, refusal: Refusal, hint: str
) -> None:
    refusing.status, refusing.code, refusing.message, refusing.detail = 403, code, message, detail
    refusing.is_json = url.startswith("gs:")
    store = open_store(url, policy=ONCE)
    for use in (
        lambda: read_bytes(store, "key"), lambda: store.create("key", b""), lambda: store.stat("key"),
        lambda: list(store.list()),
    ):  # fmt: skip
        with pytest.raises(AccessError) as caught:
            use()
        assert caught.value.refusal is refusal
        assert hint in caught.value.hint
        assert (detail or message) in str(caught.value)
    for right in ("create", "read"):
        told = explain_refusal(caught.value, url, right)[1]
        assert hint in told
        assert right not in told


def test_a_services_sentence_keeps_no_signature(refusing: Refusing) -> None:
    refusing.status, refusing.code, refusing.message = 403, "AuthenticationFailed", FORBIDDEN
    refusing.detail = f"The MAC signature found in the HTTP request '{SIGNATURE}' is not the same as any computed one."
    store = open_store(f"az://{ACCOUNT}/box", policy=ONCE)
    for use in (lambda: read_bytes(store, "key"), lambda: store.create("key", b"")):
        with pytest.raises(AccessError, match="MAC signature found") as caught:
            use()
        assert SIGNATURE not in str(caught.value)


def test_a_region_that_an_answer_names_is_no_host(refusing: Refusing) -> None:
    refusing.status, refusing.code = 400, "AuthorizationHeaderMalformed"
    refusing.message = "m</Message><Region>evil.example/</Region><Message>"
    with pytest.raises(AccessError):
        read_bytes(open_store("s3://bucket", policy=ONCE), "key")


def test_a_new_object_that_a_policy_protects_exists_already(refusing: Refusing) -> None:
    refusing.status, refusing.code = 409, "BlobImmutableDueToPolicy"
    with pytest.raises(ObjectExistsError):
        open_store(f"az://{ACCOUNT}/box", policy=ONCE).create("key", b"")


@pytest.mark.parametrize("code", ["BlobImmutableDueToPolicy", "BlobImmutableDueToLegalHold"])
def test_deleting_what_a_policy_protects_is_one_line(refusing: Refusing, code: str) -> None:
    refusing.status, refusing.code = 409, code
    with pytest.raises(ConfigurationError, match=r"HTTP 409 Blob.* protects the object") as caught:
        open_store(f"az://{ACCOUNT}/box", policy=ONCE).delete("key")
    assert "\n" not in str(caught.value)


def test_a_folder_of_a_hierarchical_namespace_is_no_object(azurite: str, clean_environment: pytest.MonkeyPatch) -> None:
    """The Blob API shows such a folder as an empty blob with this mark."""
    client, store = make_container(clean_environment, azurite, "folders"), open_store(f"az://{ACCOUNT}/folders/x")
    client.get_blob_client("x/folder").upload_blob(b"", metadata={"hdi_isfolder": "true"})
    store.create("folder/key", b"bytes")
    assert [info.key for info in store.list()] == ["folder/key"]
    with pytest.raises(ObjectMissingError, match="no such object"):
        store.stat("folder")


def test_a_blob_in_the_archive_tier_is_named_as_such(azurite: str, clean_environment: pytest.MonkeyPatch) -> None:
    client, store = make_container(clean_environment, azurite, "archived"), open_store(f"az://{ACCOUNT}/archived")
    store.create("key", b"bytes")
    client.get_blob_client("key").set_standard_blob_tier("Archive")
    with pytest.raises(AccessError, match=r"is archived: HTTP 409 BlobArchived.*\(hint: move the blob"):
        read_bytes(store, "key")


def test_markers_of_folders_are_no_objects(moto: str, clean_environment: pytest.MonkeyPatch) -> None:
    """The S3 console's "Create folder", and Hadoop, leave empty objects."""
    client = make_bucket(clean_environment, moto, "markers")
    for key in ("x/", "x/folder/", "x/folder_$folder$"):
        client.put_object(Bucket="markers", Key=key, Body=b"")
    store = open_store("s3://markers/x")
    store.create("folder/empty", b"")
    store.create("folder/price_$folder$", b"bytes")
    assert [info.key for info in store.list()] == ["folder/empty", "folder/price_$folder$"]


def test_a_public_bucket_is_read_without_credentials(moto: str, clean_environment: pytest.MonkeyPatch) -> None:
    client = make_bucket(clean_environment, moto, "public")
    client.put_object(Bucket="public", Key="x/key", Body=b"bytes", ACL="public-read")
    client.put_object(Bucket="public", Key="x/private", Body=b"bytes")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        clean_environment.delenv(name)
    store = open_store("s3://public/x", policy=ONCE)
    assert [info.key for info in store.list()] == ["key", "private"]
    assert read_bytes(store, "key") == b"bytes"
    refused = (
        "no usable credentials: a request without any is refused, HTTP 403 "
        "(hint: check the credentials of this environment"
    )
    with pytest.raises(AccessError, match=re.escape(refused)) as caught:
        read_bytes(store, "private")
    assert caught.value.refusal is Refusal.CREDENTIALS
    with pytest.raises(AccessError, match="no usable credentials"):
        presign(store, "key")


def test_a_public_container_is_read_without_credentials(
    azurite: str, clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for container, access in (("public", "container"), ("private", None)):
        make_container(clean_environment, azurite, container, public_access=access)
        open_store(f"az://{ACCOUNT}/{container}").create("key", b"bytes")
    clean_environment.delenv("AZURE_STORAGE_KEY")
    # The sources of an identity that would ask the network or a tool.
    clean_environment.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://[fe80::1]:1")
    clean_environment.setenv("PATH", str(tmp_path))
    clean_environment.setattr(time, "sleep", lambda _: None)
    public = open_store(f"az://{ACCOUNT}/public", policy=ONCE)
    assert [info.key for info in public.list()] == ["key"]
    assert (read_bytes(public, "key"), public.stat("key").size) == (b"bytes", 5)
    private = open_store(f"az://{ACCOUNT}/private", policy=ONCE)
    for use in (lambda: read_bytes(private, "key"), lambda: private.stat("key"), lambda: list(private.list())):
        with pytest.raises(AccessError, match="no usable credentials: a request without any is refused"):
            use()


@pytest.mark.parametrize(
    ("url", "name", "value"),
    [
        ("s3://bucket", "AWS_ACCESS_KEY_ID", "AKID\nMORE"),
        ("s3://bucket", "AWS_SESSION_TOKEN", "two\nlines"),
        (f"az://{ACCOUNT}/box", "AZURE_STORAGE_SAS_TOKEN", "sv=1&sig=a\nb"),
    ],
)
def test_a_credential_that_no_request_can_carry_is_refused_at_once(
    refusing: Refusing, clean_environment: pytest.MonkeyPatch, url: str, name: str, value: str
) -> None:
    if name == "AZURE_STORAGE_SAS_TOKEN":
        clean_environment.delenv("AZURE_STORAGE_KEY")
    clean_environment.setenv(name, value)
    store = open_store(url)
    # Azure's SDK quotes the line break in its own requests.
    for use in (lambda: read_bytes(store, "key"), *([lambda: list(store.list())] if url.startswith("s3:") else [])):
        with pytest.raises(AccessError, match="a character that is not allowed"):
            use()
    assert refusing.seen == []


@pytest.mark.parametrize(("before", "after"), [("", "\n"), (" ", "\r\n"), ('"', '"'), ("'", "'\n")])
def test_a_key_with_a_line_break_or_quotes_around_it_is_the_key(
    refusing: Refusing, clean_environment: pytest.MonkeyPatch, before: str, after: str
) -> None:
    """As `echo`, an env file and a CI system's form leave it."""
    clean_environment.setenv("AWS_ACCESS_KEY_ID", f"{before}AKID{after}")
    clean_environment.setenv("AWS_SESSION_TOKEN", "")
    open_store("s3://bucket", policy=ONCE).stat("key")
    assert "Credential=AKID/" in refusing.seen[-1]["authorization"]


def test_a_deleted_object_of_a_versioned_bucket_can_be_made_again(
    moto: str, clean_environment: pytest.MonkeyPatch
) -> None:
    client = make_bucket(clean_environment, moto, "versioned")
    client.put_bucket_versioning(Bucket="versioned", VersioningConfiguration={"Status": "Enabled"})
    store = open_store("s3://versioned")
    first = store.create("key", b"one")
    store.delete("key")
    with pytest.raises(PreconditionFailedError):
        store.swap("key", b"x", if_match=first.etag)
    store.create("key", b"two")
    assert read_bytes(store, "key") == b"two"
    assert re.fullmatch("[0-9a-f]+", store.stat("key").etag)
