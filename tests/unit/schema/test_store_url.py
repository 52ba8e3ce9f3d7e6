"""Store URLs: names by each service's rules, and no redirection of credentials."""

from __future__ import annotations

import pytest

from plumbline.data.stores import open_store
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.store_url import StoreAddress, parse_store_url

FOREIGN = [
    "az://evil.example.com/container",
    "az://evil.example.com:8443/container",
    "az://evil.example.com#/container",
    "az://127.0.0.1/container",
    "az://account:443/container",
    "az://account#fragment/container",
    "az://evil\\.com/container",
    "az://evil%2ecom/container",
    "az://account/container#fragment",
    "az://account/con.tainer",
    "az://Account/container",
    "az://ab/container",
    f"az://{'a' * 25}/container",
    "az://[::1]/container",
    "az://account/Container",
    "az://account/-container",
    "az://account/con--tainer",
    "az://account",
    "s3://evil.example.com:9000/x",
    "s3://bucket#fragment/x",
    "gs://evil.example.com:9000/x",
    "gs://bucket/x#fragment",
    "s3://[::1]/x",
]


@pytest.mark.parametrize("url", FOREIGN)
def test_a_host_a_port_or_a_fragment_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"not a|fragment|names no container"):
        parse_store_url(url)
    with pytest.raises(ConfigurationError) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("az://acmedata/plumbline", StoreAddress("az", "acmedata", "plumbline", "")),
        ("az://acmedata/$web/a/b/", StoreAddress("az", "acmedata", "$web", "a/b")),
        ("s3://acme.data-us_1/plumb line/x", StoreAddress("s3", "acme.data-us_1", "", "plumb line/x")),
        ("gs://acme", StoreAddress("gs", "acme", "", "")),
        ("file:///folder/a#b", StoreAddress("file", "", "", "/folder/a#b")),
    ],
)
def test_names_are_accepted(url: str, address: StoreAddress) -> None:
    assert parse_store_url(url) == address
    assert open_store(url).url == url.rstrip("/")
