"""What a lock or an event names becomes neither an option, nor a path, nor a request that carries a credential."""

from __future__ import annotations

import http.server
import json
import ssl
import threading

import pytest
from pydantic import ValidationError

from plumbline.environments.locks import LockFiles, parse_lock
from plumbline.schema.errors import ConfigurationError, PlumblineError
from plumbline.tasks.download import download
from plumbline.upgrade.request import Candidate, read_candidate
from tests.certificates import make_certificate
from tests.unit.suites import suite_of

SHA = "0" * 64
UV = """version = 1
[[package]]
name = "own"
version = "1"
source = {{ virtual = "." }}
dependencies = [{{ name = "demo" }}]
[[package]]
name = "demo"
version = {version}
source = {source}
wheels = [{{ url = "https://h/demo.whl", hash = {sha256} }}]
"""


@pytest.mark.parametrize(
    ("version", "source", "sha256"),
    [
        ("1.0\n--extra-index-url=https://evil", {"registry": "https://h"}, f"sha256:{SHA}"),
        ("1.0 --index-url=https://evil", {"registry": "https://h"}, f"sha256:{SHA}"),
        ("../../../../tmp/escaped", {"registry": "https://h"}, f"sha256:{SHA}"),
        ("1.0", {"registry": "https://h"}, f"sha256:{SHA}\n--index-url=https://evil"),
        ("1.0", {"registry": "https://h"}, f"sha256:{SHA} --index-url=https://evil"),
        ("1.0", {"url": "https://h/demo.whl\n--index-url=https://evil"}, f"sha256:{SHA}"),
        ("1.0", {"url": "https://h/demo.whl --index-url=https://evil"}, f"sha256:{SHA}"),
        ("1.0", {"url": "https://evil/${PIP_INDEX_URL}/demo.whl"}, f"sha256:{SHA}"),
        ("1.0", {"url": "https://user:hunter2@h/demo.whl"}, f"sha256:{SHA}"),
        ("1.0", {"url": "https://hunter2@h/demo.whl"}, f"sha256:{SHA}"),
        ("1.0", {"git": f"https://user:hunter2@h/r?rev=main#{'a' * 40}"}, f"sha256:{SHA}"),
    ],
)
def test_a_pin_can_inject_nothing_into_an_installer(version: str, source: dict[str, str], sha256: str) -> None:
    table = ", ".join(f"{name} = {json.dumps(value)}" for name, value in source.items())
    text = UV.format(version=json.dumps(version), source=f"{{ {table} }}", sha256=json.dumps(sha256))
    with pytest.raises(ConfigurationError) as caught:
        parse_lock(LockFiles(name="uv.lock", files={"uv.lock": text}))
    assert str(caught.value).count("\n") == 0
    assert "hunter2" not in str(caught.value)


def test_an_ssh_account_is_no_credential() -> None:
    text = f"demo @ git+ssh://git@github.com/o/r@{'a' * 40}\n"
    assert parse_lock(LockFiles(name="l.txt", files={"l.txt": text})).pins["demo"].url.startswith("git+ssh://git@")


@pytest.mark.parametrize(
    "url", ["https://user:hunter2@h/l.txt", "https://hunter2@h/l.txt", "https://h/l.txt?private_token=hunter2"]
)
def test_a_candidates_address_with_a_credential_is_refused_and_not_repeated(url: str) -> None:
    suite = suite_of("a", candidates=["https://h"])

    def never(*_: object) -> bytes:
        raise AssertionError("read with its credential")

    with pytest.raises(ConfigurationError, match=r"candidate\.url: contains a credential") as caught:
        read_candidate(Candidate(url=url, sha256=SHA), suite, never)
    assert "hunter2" not in str(caught.value)


class _Redirecting(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.asked.append(self.path)
        if self.path == "/lock":
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"x==1\n")
            return
        self.send_response(302)
        self.send_header("Location", server.target)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class _Server(http.server.ThreadingHTTPServer):
    target = ""
    asked: list[str]


@pytest.fixture
def server(tmp_path, monkeypatch):
    context: ssl.SSLContext = make_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with _Server(("127.0.0.1", 0), _Redirecting) as running:
        running.asked = []
        running.socket = context.wrap_socket(running.socket, server_side=True)
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_a_redirect_leads_to_public_https_addresses_only(server) -> None:
    base = f"https://127.0.0.1:{server.server_port}"
    assert download(f"{base}/lock", 100, key="candidate.url") == b"x==1\n"
    targets = (
        f"http://127.0.0.1:{server.server_port}/lock", "http://169.254.169.254/latest/meta-data", "file:///etc/passwd",
        f"{base}/lock", "https://[::1]/lock", "https://[::ffff:127.0.0.1]/lock", "https://[64:ff9b::a9fe:a9fe]/lock", "https://[64:ff9b:1::7f00:1]/lock",
        "https://[2002:7f00:1::]/lock", "https://[::127.0.0.1]/lock", "https://[2001:0:5ef5:79fd:0:0:80ff:fffe]/lock", "https://user:hunter2@example.com/lock",
        "/lock", "https://[/", "https://localhost/lock",
    )  # fmt: skip
    for target in targets:
        server.target, server.asked = target, []
        with pytest.raises(PlumblineError, match="redirects to") as caught:
            download(f"{base}/moved", 100, key="candidate.url")
        assert server.asked == ["/moved"], target
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://h/x\ny", "https://h/<script>alert(1)</script>", "https://h/x](https://evil", "https://h/ x",
        'https://h/"onmouseover="x', "https://user:hunter2@h/x", "https://h/x?token=hunter2", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_the_address_of_reports_is_an_address_and_nothing_else(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        suite_of("a", report_url=url)
    assert "hunter2" not in caught.value.errors()[0]["msg"]
