"""Credentials of a storage account, and the authorization of its reads."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from plumbline.data.stores.azure_access import AzureAccess, ReadAuthorization, Renewed, find_access

KEY = base64.b64encode(b"a key").decode()
TEXT = f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY};EndpointSuffix=core.windows.net"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONNECTION_STRING", "KEY", "SAS_TOKEN"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.delenv("PLUMBLINE_AZURE_ENDPOINT", raising=False)


def test_a_connection_string_counts_for_its_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", TEXT)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=x")
    assert find_access("acme").key == KEY
    assert find_access("acme").connection_string == TEXT
    other = find_access("other")
    assert (other.key, other.connection_string, other.sas) == ("", "", "sv=1&sig=x")
    assert other.endpoint == "https://other.blob.core.windows.net"


def test_reads_with_a_key_carry_a_link_of_an_hour_that_reads_only() -> None:
    target, headers = ReadAuthorization(AzureAccess("acme", "https://x", key=KEY), "box").apply("/box/a%20b")
    link = urlsplit(target)
    values = {name: value for name, (value,) in parse_qs(link.query).items()}
    assert (link.path, headers, values["sr"], values["sp"]) == ("/box/a%20b", {}, "c", "r")
    left = datetime.fromisoformat(values["se"]) - datetime.now(UTC)
    assert 3000 < left.total_seconds() <= 3600
    assert KEY not in target


def test_reads_with_a_token_of_the_environment_carry_it() -> None:
    access = AzureAccess("acme", "https://x", sas="sv=1&sig=x")
    assert ReadAuthorization(access, "box").apply("/box/a") == ("/box/a?sv=1&sig=x", {})


def test_an_identitys_token_is_sent_as_a_header() -> None:
    class Token:
        token, expires_on = "abc", 4e9

    class Identity:
        def get_token(self, scope: str) -> Token:
            assert scope == "https://storage.azure.com/.default"
            return Token()

    identity: Any = Identity()
    target, headers = ReadAuthorization(AzureAccess("acme", "https://x", identity=identity), "box").apply("/box/a")
    assert (target, headers["Authorization"]) == ("/box/a", "Bearer abc")
    assert headers["x-ms-date"].endswith("GMT")


def test_a_value_is_made_once_until_shortly_before_its_end() -> None:
    values: Iterator[tuple[str, float]] = iter([("one", 1000.0), ("two", 2000.0)])
    now = [0.0]
    renewed = Renewed(lambda: next(values), lambda: now[0])
    assert {renewed.get() for _ in range(3)} == {"one"}
    now[0] = 699.0
    assert renewed.get() == "one"
    now[0] = 701.0
    assert renewed.get() == "two"
