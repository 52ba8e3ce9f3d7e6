"""Google Cloud Storage: credentials, refusals, and interrupted uploads."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path

import pytest
import requests

from plumbline.data.stores import (
    ObjectExistsError,
    PreconditionFailedError,
    RetryPolicy,
    Store,
    ensure_object,
    gs,
    open_store,
    presign,
    read_bytes,
)
from plumbline.data.stores.body import content_md5
from plumbline.data.stores.google_api import url_to_sign
from plumbline.schema.errors import AccessError, ConfigurationError, UnavailableError
from tests.commands import run
from tests.contract.conftest import give_aws, give_google
from tests.faultserver.google import GoogleServer

CHILD = Path(__file__).with_name("google_child.py")
QUICK = RetryPolicy(attempts=4, first_seconds=0.01, longest_seconds=0.02)


@pytest.fixture
def google(clean_environment: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    """Start a strict server, with Amazon's credentials in the environment."""
    with GoogleServer() as server:
        give_aws(clean_environment, "http://127.0.0.1:9")
        clean_environment.setenv("PLUMBLINE_GS_ENDPOINT", server.url)
        clean_environment.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
        clean_environment.setenv("GCE_METADATA_IP", server.url.removeprefix("http://"))
        yield server


@pytest.fixture
def account(google: GoogleServer, clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set a service account's file in the environment."""
    give_google(clean_environment, google, tmp_path)
    return tmp_path / "account.json"


@pytest.fixture
def store(account: Path) -> Store:
    """Return a store with the service account's credentials."""
    assert account.is_file()
    return open_store("gs://bucket/prefix", policy=QUICK)


def in_a_process(*arguments: str) -> dict[str, str]:
    done = run(sys.executable, CHILD, *(arguments or ["gs://bucket/prefix"]))
    assert not done.stderr
    return dict(json.loads(done.stdout))


def test_the_machines_own_identity(google: GoogleServer) -> None:
    assert in_a_process() == {"read": "others"}
    assert set(google.authorizations) == {"Bearer token-1"}


def test_a_metadata_server_that_is_not_ready_yet_is_asked_again(google: GoogleServer) -> None:
    google.refusals = [503]
    assert in_a_process() == {"read": "others"}


def test_a_service_accounts_file(google: GoogleServer, store: Store) -> None:
    store.swap("key", b"others", if_match=store.create("key", b"bytes").etag)
    assert read_bytes(store, "key") == b"others"
    assert set(google.authorizations) == {"Bearer token-1"}


def test_without_any_credentials_one_line_names_three_ways(
    google: GoogleServer, clean_environment: pytest.MonkeyPatch
) -> None:
    clean_environment.setenv("NO_GCE_CHECK", "true")
    answer = in_a_process()
    assert answer["error"] == "AccessError"
    assert "no usable credentials: a request without any is refused, HTTP 401 required" in answer["what"]
    assert "gcloud auth application-default login" in answer["what"]
    assert "\n" not in answer["what"]
    assert set(google.authorizations) == {""}, "nor are Amazon's credentials sent to Google"


def test_a_public_bucket_is_read_without_credentials(
    google: GoogleServer, clean_environment: pytest.MonkeyPatch
) -> None:
    clean_environment.setenv("NO_GCE_CHECK", "true")
    google.is_public = True
    google.objects["data/part-0.csv"] = (1, b"bytes", "text/csv")
    assert in_a_process("gs://bucket/data", "part-0.csv") == {"read": "bytes"}


def test_a_damaged_credentials_file_is_one_line(account: Path) -> None:
    account.write_text("{}")
    with pytest.raises(AccessError, match="no usable credentials"):
        open_store("gs://bucket").stat("key")


def test_a_key_that_google_does_not_know_is_refused(account: Path, google: GoogleServer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with GoogleServer() as other:
        content = json.loads(other.account_file(tmp_path / "other").read_text())
    account.write_text(json.dumps(content | {"token_uri": f"{google.url}/token"}))
    with pytest.raises(AccessError, match="no usable credentials: RefreshError"):
        open_store("gs://bucket", policy=QUICK).stat("key")


def test_a_token_service_that_does_not_answer_is_unavailable(account: Path) -> None:
    account.write_text(json.dumps(json.loads(account.read_text()) | {"token_uri": "http://127.0.0.1:9/token"}))
    with pytest.raises(UnavailableError, match="no access token"):
        open_store("gs://bucket", policy=RetryPolicy(attempts=2, first_seconds=0.01)).stat("key")


@pytest.mark.parametrize("endpoint", ["http://storage.example.com", "storage.example.com:4443", "ftp://127.0.0.1"])
def test_a_token_is_never_sent_unencrypted_to_another_machine(
    account: Path, clean_environment: pytest.MonkeyPatch, endpoint: str
) -> None:
    assert account.is_file()
    clean_environment.setenv("PLUMBLINE_GS_ENDPOINT", endpoint)
    with pytest.raises(ConfigurationError, match=r"PLUMBLINE_GS_ENDPOINT.*unencrypted"):
        open_store("gs://bucket", policy=QUICK).stat("key")


MIXED = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-goog-if-generation-match": "0"}


@pytest.mark.parametrize("headers", [MIXED, {"Authorization": "AWS4-HMAC-SHA256 x", "x-goog-if-generation-match": "0"}])
def test_the_server_refuses_mixed_headers_as_google_does(google: GoogleServer, headers: dict[str, str]) -> None:
    answer = requests.put(f"{google.url}/bucket/key", b"bytes", headers=headers, timeout=10)
    assert (answer.status_code, "ExcessHeaderValues" in answer.text) == (400, True)


def test_a_wrong_generation_is_refused(store: Store) -> None:
    first = store.create("key", b"first")
    second = store.swap("key", b"second", if_match=first.etag)
    assert int(second.etag) > int(first.etag)
    for wrong in (first.etag, str(int(second.etag) + 1), "0123abcd", ""):
        with pytest.raises(PreconditionFailedError):
            store.swap("key", b"third", if_match=wrong)
        with pytest.raises(PreconditionFailedError), store.open("key", if_match=wrong):
            pass
    assert read_bytes(store, "key") == b"second"


def large_file(folder: Path, megabytes: int) -> Path:
    path = folder / "large"
    path.write_bytes(random.Random(2).randbytes(1 << 20) * megabytes)
    return path


def test_an_upload_that_breaks_off_goes_on_where_the_service_has_it(
    store: Store, google: GoogleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gs, "_CHUNK_BYTES", 4 << 20)
    path = large_file(tmp_path, 13)
    google.broken_chunks = [4 << 20, 1 << 20, -(1 << 20), 0]
    assert ensure_object(store, "large", path)
    assert google.received <= (13 + 4 + 4 + 4 + 4) << 20, "what had arrived was sent again"
    with pytest.raises(ObjectExistsError):
        store.create("large", path)


def test_an_upload_session_that_the_service_has_lost_is_begun_anew(
    account: Path, google: GoogleServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gs, "_CHUNK_BYTES", 4 << 20)
    assert account.is_file()
    google.broken_chunks = [0]
    # Between the two attempts the service forgets.
    patient = RetryPolicy(attempts=4, first_seconds=0.01, sleep=lambda _: google.sessions.clear())
    assert open_store("gs://bucket/prefix", policy=patient).create("large", large_file(tmp_path, 9)).size == 9 << 20


def test_an_upload_session_on_another_host_gets_no_token(store: Store, google: GoogleServer, tmp_path: Path) -> None:
    with GoogleServer() as other:
        google.session_host = other.url
        with pytest.raises(ConfigurationError, match="different host"):
            store.create("large", large_file(tmp_path, 9))
        assert other.authorizations == []


def test_bytes_damaged_on_their_way_up_are_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The MD5 is of the file; what is sent is another: a machine whose memory is not to be trusted."""
    monkeypatch.setattr(gs, "content_md5", lambda _: content_md5(BytesIO(b"other")))
    for data in (b"bytes", large_file(tmp_path, 9)):
        with pytest.raises(ConfigurationError, match="HTTP 400 invalid"):
            store.create("key", data)


def test_a_signed_link_opens_the_object_and_no_other(store: Store) -> None:
    store.create("report.html", b"<!DOCTYPE html>page")
    store.create("secret.html", b"other")
    link = presign(store, "report.html", 600)
    answer = requests.get(link, timeout=10)
    assert answer.content == b"<!DOCTYPE html>page"
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    forged = link[:-1] + ("1" if link.endswith("0") else "0")
    for wrong in (link.replace("report", "secret"), link.replace("Expires=600", "Expires=601"), forged):
        assert requests.get(wrong, timeout=10).status_code == 403


def test_what_is_signed_is_googles_own_example() -> None:
    """googleapis/conformance-tests, storage/v1/v4_signatures.json, "Simple GET"."""
    email, now = "test-iam-credentials@dummy-project-id.iam.gserviceaccount.com", datetime(2019, 2, 1, 9, tzinfo=UTC)
    url, message = url_to_sign("https://storage.googleapis.com", "test-bucket", "test-object", 10, email=email, now=now)
    assert url == (
        "https://storage.googleapis.com/test-bucket/test-object?X-Goog-Algorithm=GOOG4-RSA-SHA256&X-Goog-Credential="
        "test-iam-credentials%40dummy-project-id.iam.gserviceaccount.com%2F20190201%2Fauto%2Fstorage%2Fgoog4_request"
        "&X-Goog-Date=20190201T090000Z&X-Goog-Expires=10&X-Goog-SignedHeaders=host"
    )
    assert message.split(b"\n")[:3] == [
        b"GOOG4-RSA-SHA256", b"20190201T090000Z", b"20190201/auto/storage/goog4_request",
    ]  # fmt: skip
    assert message.split(b"\n")[3] == b"00e2fb794ea93d7adb703edaebdd509821fcc7d4f1a79ac5c8d2b394df109320"
