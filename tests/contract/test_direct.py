"""Direct reads: kept connections, certificates, proxies, and buckets of a different region."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest

from plumbline.data.stores import RetryPolicy, open_store, read_bytes
from plumbline.schema.errors import ConfigurationError, UnavailableError
from tests.certificates import make_certificate
from tests.contract.conftest import ACCOUNT, give_aws, give_azure, make_bucket, make_container
from tests.contract.proxy import Proxy
from tests.http_server import Handler, serving

ONCE = RetryPolicy(attempts=1)
REGION = "eu-central-1"
HOST = "store.svc.cluster.local"
"""Host that only the proxy knows, as a server of a Kubernetes cluster has."""


def give_proxy(environment: pytest.MonkeyPatch, name: str, url: str) -> None:
    environment.setenv(name, url)
    for each in ("no_proxy", "NO_PROXY"):  # Plumbline adds its own servers to both
        environment.setenv(each, "")


class Quiet(Handler):
    """Server of one object, `bytes`."""

    seen: list[Any]

    def answer(self) -> None:
        self.seen.append(self.client_address)
        self.reply(200, b"bytes", {"ETag": '"1"'})


def test_one_connection_serves_one_reader_after_the_next(clean_environment: pytest.MonkeyPatch) -> None:
    handler = type("Handler", (Quiet,), {"seen": []})
    with serving(handler) as url:
        give_aws(clean_environment, url)
        store = open_store("s3://bucket", policy=ONCE)
        assert [read_bytes(store, f"key-{number}") for number in range(5)] == [b"bytes"] * 5
    assert len(handler.seen) == 5
    assert len(set(handler.seen)) == 1


def test_a_connection_that_the_server_has_closed_meanwhile_is_replaced(clean_environment: pytest.MonkeyPatch) -> None:
    """The server closes each connection after its answer without saying so."""

    class Handler(Quiet):
        seen: list[Any] = []

        def answer(self) -> None:
            super().answer()
            self.close_connection = True

    with serving(Handler) as url:
        give_aws(clean_environment, url)
        store = open_store("s3://bucket", policy=ONCE)
        assert [read_bytes(store, "key") for _ in range(3)] == [b"bytes"] * 3
    assert len(set(Handler.seen)) == 3


def test_a_certificate_of_an_unknown_authority_is_refused(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handler = type("Handler", (Quiet,), {"seen": []})
    with serving(handler, make_certificate(tmp_path)) as url:
        give_aws(clean_environment, url)
        with pytest.raises(UnavailableError, match="SSLCertVerificationError"):
            read_bytes(open_store("s3://bucket", policy=ONCE), "key")
        assert not handler.seen
        clean_environment.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        assert read_bytes(open_store("s3://bucket", policy=ONCE), "key") == b"bytes"


def test_reads_and_writes_go_through_the_environments_proxy(
    moto: str, azurite: str, clean_environment: pytest.MonkeyPatch
) -> None:
    make_bucket(clean_environment, moto, "proxied")
    make_container(clean_environment, azurite, "proxied")
    with Proxy() as proxy:
        give_proxy(clean_environment, "HTTP_PROXY", proxy.url.replace("//", "//name:word@"))
        clean_environment.setenv("AWS_ENDPOINT_URL", moto.replace("127.0.0.1", HOST))
        give_azure(clean_environment, azurite.replace("127.0.0.1", f"{{account}}.{HOST}"))
        for url in ("s3://proxied", f"az://{ACCOUNT}/proxied"):
            store = open_store(url, policy=ONCE)
            store.create("key", url.encode())
            proxy.requests.clear()
            assert read_bytes(store, "key") == url.encode()
            (line,) = proxy.requests
            assert re.match(rf"GET http://\S*\b{HOST}:", line)
            assert proxy.logins[-1] == f"Basic {base64.b64encode(b'name:word').decode()}"
        give_aws(clean_environment, moto)  # a server on this machine
        proxy.requests.clear()
        assert read_bytes(open_store("s3://proxied", policy=ONCE), "key") == b"s3://proxied"
        assert not proxy.requests


def test_tls_goes_through_the_proxy_unread(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    handler = type("Handler", (Quiet,), {"seen": []})
    with serving(handler, make_certificate(tmp_path)) as url, Proxy() as proxy:
        far = url.replace("127.0.0.1", HOST)
        give_aws(clean_environment, far)
        clean_environment.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        give_proxy(clean_environment, "HTTPS_PROXY", proxy.url.replace("//", "//name:pass%21word@"))
        assert read_bytes(open_store("s3://bucket", policy=ONCE), "key") == b"bytes"
    (line,) = proxy.requests
    assert line.startswith(f"CONNECT {far.removeprefix('https://')} HTTP/1.")
    assert proxy.logins == [f"Basic {base64.b64encode(b'name:pass!word').decode()}"]


def test_a_proxy_of_an_unsupported_kind_is_one_line(clean_environment: pytest.MonkeyPatch) -> None:
    give_aws(clean_environment, f"http://{HOST}:9")
    give_proxy(clean_environment, "HTTP_PROXY", "https://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match="HTTP_PROXY: only http:// proxies are supported"):
        read_bytes(open_store("s3://bucket", policy=ONCE), "key")


class Regional(Quiet):
    """S3 endpoint that refuses a signature for a different region, as S3's own ones do."""

    header: bool

    def answer(self) -> None:
        region = self.headers["Authorization"].split("/")[2]
        self.seen.append(region)
        if region == REGION:
            return self.reply(200, b"bytes", {"ETag": '"1"'})
        if self.header:
            body = b"<Error><Code>PermanentRedirect</Code></Error>"
            return self.reply(301, body, {"x-amz-bucket-region": REGION})
        body = f"<Error><Code>AuthorizationHeaderMalformed</Code><Region>{REGION}</Region></Error>"
        return self.reply(400, body.encode())


@pytest.mark.parametrize("header", [True, False])
def test_a_bucket_of_a_different_region_is_read_there(clean_environment: pytest.MonkeyPatch, *, header: bool) -> None:
    handler = type("Handler", (Regional,), {"seen": [], "header": header})
    with serving(handler) as url:
        give_aws(clean_environment, url)
        store = open_store("s3://bucket", policy=ONCE)
        assert read_bytes(store, "key") == read_bytes(store, "key") == b"bytes"
    assert handler.seen == ["us-east-1", REGION, REGION]


def test_a_service_that_names_a_different_region_each_time_is_an_error(clean_environment: pytest.MonkeyPatch) -> None:
    class Wandering(Quiet):
        seen: list[Any] = []

        def answer(self) -> None:
            self.seen.append(1)
            self.reply(301, headers={"x-amz-bucket-region": f"region-{len(self.seen)}"})

    with serving(Wandering) as url:
        give_aws(clean_environment, url)
        with pytest.raises(ConfigurationError, match="check the bucket's region"):
            read_bytes(open_store("s3://bucket", policy=ONCE), "key")
    assert len(Wandering.seen) == 2
