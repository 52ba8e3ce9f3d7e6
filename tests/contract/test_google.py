"""Google's credentials: keys of its own or the machine's identity, never Amazon's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from plumbline.errors import AccessError, UnavailableError
from plumbline.stores import RetryPolicy, open_store, read_bytes
from plumbline.stores.google_identity import MachineToken
from tests.contract.conftest import give_aws
from tests.faultserver.google import GoogleServer


@pytest.fixture
def google(clean_environment: pytest.MonkeyPatch) -> Iterator[GoogleServer]:
    with GoogleServer() as server:
        give_aws(clean_environment, "http://127.0.0.1:9")
        clean_environment.setenv("PLUMBLINE_GS_ENDPOINT", server.url)
        clean_environment.setenv("GCE_METADATA_HOST", server.url.removeprefix("http://"))
        yield server


def test_the_machines_own_identity(google: GoogleServer) -> None:
    store = open_store("gs://bucket/prefix")
    etag = store.create("key", b"bytes").etag
    store.swap("key", b"others", if_match=etag)
    assert read_bytes(store, "key") == b"others"
    assert set(google.authorizations) == {"Bearer token-1"}


def test_hmac_keys_come_first(google: GoogleServer, clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("GS_ACCESS_KEY_ID", "GOOGPLUMBLINE")
    clean_environment.setenv("GS_SECRET_ACCESS_KEY", "secret-of-the-test")
    open_store("gs://bucket/prefix").create("key", b"bytes")
    assert all("GOOGPLUMBLINE" in header for header in google.authorizations)
    assert google.tokens_given == 0


def test_amazons_credentials_are_never_sent_to_google(
    google: GoogleServer, clean_environment: pytest.MonkeyPatch
) -> None:
    clean_environment.setenv("GCE_METADATA_HOST", "metadata.invalid")
    with pytest.raises(AccessError, match="GS_ACCESS_KEY_ID"):
        open_store("gs://bucket/prefix").stat("key")
    assert google.authorizations == []


def test_a_token_is_asked_for_again_before_it_ends(google: GoogleServer) -> None:
    now = [0.0]
    token = MachineToken("gs://bucket", lambda: now[0])
    assert [token.value(), token.value()] == ["token-1", "token-1"]
    now[0] = 3600.0 - 119.0
    assert token.value() == "token-2"
    assert google.tokens_given == 2


def test_a_metadata_server_that_is_not_ready_yet_is_asked_again(
    google: GoogleServer, clean_environment: pytest.MonkeyPatch
) -> None:
    google.refusals = [503, 429]
    store = open_store("gs://bucket/prefix", policy=RetryPolicy(attempts=3, first_seconds=0.01))
    assert store.create("key", b"bytes").size == 5
    clean_environment.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    with pytest.raises(UnavailableError, match=r"no token from the metadata server.*gave up after 2 attempts"):
        open_store("gs://bucket/prefix", policy=RetryPolicy(attempts=2, first_seconds=0.01)).stat("key")


def test_a_machine_without_a_service_account_is_told_so_at_once(google: GoogleServer) -> None:
    google.refusals = [404, 404]
    with pytest.raises(AccessError, match="HTTP Error 404"):
        open_store("gs://bucket/prefix").stat("key")
    assert google.refusals == [404]


def test_names_that_nobody_can_look_up_yet_are_looked_up_again(
    google: GoogleServer, clean_environment: pytest.MonkeyPatch
) -> None:
    real, troubles = socket.getaddrinfo, [socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")]

    def look_up(*arguments: Any, **options: Any) -> Any:
        if troubles:
            raise troubles.pop()
        return real(*arguments, **options)

    clean_environment.setattr(socket, "getaddrinfo", look_up)
    store = open_store("gs://bucket/prefix", policy=RetryPolicy(attempts=2, first_seconds=0.01))
    assert store.create("key", b"bytes").size == 5
    assert google.tokens_given == 1
