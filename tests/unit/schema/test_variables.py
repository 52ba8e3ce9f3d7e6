"""The one reader of environment variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.settings import Settings

from plumbline.schema.variables import clean_variables, variable, variable_error

CODE = Path(__file__).parents[3]
# A whole environment for a child process, or a mapping that a function reads, is not a read.
READ = re.compile(
    r"os\.environ\.(get|pop|setdefault)\b|os\.environ\[|os\.getenv\b|from os import .*\b(environ|getenv)\b"
)


def test_every_read_of_a_variable_goes_through_the_reader() -> None:
    files = [path for folder in ("plumbline", "flows", "tasks") for path in (CODE / folder).rglob("*.py")]
    assert len(files) > 100
    reads = [
        f"{path.relative_to(CODE)}:{number}"
        for path in files
        if path.name != "variables.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if READ.search(line)
    ]
    assert not reads, "use plumbline.schema.variables.variable"


@pytest.mark.parametrize("given", ["AKID", "AKID\n", " AKID\r\n", '"AKID"', "'AKID'\n", '" AKID "'])
def test_a_value_is_what_was_meant(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PLUMBLINE_X", given)
    assert variable("PLUMBLINE_X", "default") == "AKID"


@pytest.mark.parametrize("given", [None, "", "\n", '""', "' '"])
def test_an_empty_value_is_an_absent_one(monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    monkeypatch.delenv("PLUMBLINE_X", raising=False)
    if given is not None:
        monkeypatch.setenv("PLUMBLINE_X", given)
    assert (variable("PLUMBLINE_X"), variable("PLUMBLINE_X", "default")) == ("", "default")


class _Racing(dict[str, str]):
    """Environment from which a different thread removes each variable, once its name is known."""

    def __iter__(self) -> Iterator[str]:
        names = list(super().__iter__())
        self.clear()
        return iter(names)


def test_several_threads_may_clean_at_once() -> None:
    clean_variables(environment := _Racing(AWS_SESSION_TOKEN="", AWS_PROFILE=" team"))
    assert not environment


def test_what_libraries_read_by_themselves_is_cleaned_and_all_else_kept() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "a'b\n", "AWS_SESSION_TOKEN": "", "AZURE_CLIENT_SECRET": '"~x="', "PATH": " /bin ",
        "GOOGLE_APPLICATION_CREDENTIALS": "/a b/key.json\n", "PREFECT_API_URL": "", "PREFECT_API_KEY": "pnu_1\n",
        "AWS_PROFILE": "'", "EMPTY": "",
    }  # fmt: skip
    clean_variables(environment)
    assert environment == {
        "AWS_SECRET_ACCESS_KEY": "a'b", "AZURE_CLIENT_SECRET": "~x=", "PATH": " /bin ", "EMPTY": "",
        "GOOGLE_APPLICATION_CREDENTIALS": "/a b/key.json", "PREFECT_API_KEY": "pnu_1", "AWS_PROFILE": "'",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"ALL_PROXY": "socks5://127.0.0.1:1080"}, "ALL_PROXY"),
        ({"HTTPS_PROXY": "ftp://proxy:1"}, "HTTPS_PROXY"),
        ({"http_proxy": "http://me:secret@proxy:port"}, "http_proxy"),
        ({"NO_PROXY": "localhost,[::1]", "HTTP_PROXY": "http://proxy:1"}, "NO_PROXY"),
        ({"NO_PROXY": "fe80::/10"}, "NO_PROXY"),
        ({"SSL_CERT_FILE": "/gone/authorities.pem"}, "SSL_CERT_FILE"),
        ({"PREFECT_LOGGING_LEVEL": "loud"}, "PREFECT_LOGGING_LEVEL"),
        ({"PREFECT_SERVER_API_PORT": "secret"}, "PREFECT_SERVER_API_PORT"),
    ],
    ids=str,
)
def test_a_variable_that_a_library_refuses_is_named_and_not_quoted(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    for name in ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((ImportError, OSError, ValueError, httpx.InvalidURL)) as caught:
        (Settings(), httpx.Client())
    error = variable_error(caught.value)
    assert error is not None
    assert (error.key, "secret" in str(error)) == (named, False)


def test_servers_on_this_machine_are_asked_without_the_proxy() -> None:
    environment = {"HTTPS_PROXY": "http://proxy:1", "no_proxy": "acme.example"}
    clean_variables(environment)
    assert environment["no_proxy"] == environment["NO_PROXY"] == "acme.example,localhost,127.0.0.1"
    environment["NO_PROXY"] = "elsewhere.example"
    clean_variables(environment)
    assert environment["NO_PROXY"] == "elsewhere.example,localhost,127.0.0.1"
    for given in ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "*"}, {"NO_PROXY": "acme.example"}):
        environment = dict(given)
        clean_variables(environment)
        assert environment["NO_PROXY"] == given["NO_PROXY"]
