"""A cloud library's text is never quoted: it may repeat a key, or a variable's whole value."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from botocore import exceptions as aws
from google.auth import exceptions as google

from plumbline.data.stores.azure_access import find_access
from plumbline.data.stores.foreign_errors import cause_of

ROOT = Path(__file__).parents[3]
SECRET = "d-SECRET/1//0x+y=="
KEY = json.dumps({"client_secret": SECRET, "type": "authorized_user"}, indent=2)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (google.DefaultCredentialsError(f"File {KEY} was not found."), "GOOGLE_APPLICATION_CREDENTIALS"),
        (google.DefaultCredentialsError(f"The file {KEY} does not have a valid type. Type is x."), "no known type"),
        (google.RefreshError(f"File '{SECRET}' was not found."), "credential_source"),
        (google.RefreshError(f"Executable exited with non-zero return code 1. Error: {SECRET}"), "executable"),
        (google.RefreshError("invalid_grant: Bad Request", {"x": SECRET}), "invalid_grant: Bad Request"),
        (google.RefreshError(SECRET), ""),
        (aws.CredentialRetrievalError(provider="custom-process", error_msg=SECRET), "credential_process failed"),
        (aws.ProfileNotFound(profile=SECRET), "check AWS_PROFILE"),
        (aws.InvalidRegionError(region_name=SECRET), "check AWS_DEFAULT_REGION"),
        (aws.ProxyConnectionError(proxy_url=f"http://me:{SECRET}@proxy"), "the proxy does not answer"),
        (ValueError(f"Invalid endpoint: {SECRET}"), "check AWS_ENDPOINT_URL"),
        (ValueError("Invalid endpoint: minio:9000"), "the endpoint minio:9000"),
        (FileNotFoundError(2, "No such file or directory", SECRET), "AWS_WEB_IDENTITY_TOKEN_FILE: No such file"),
        (FileNotFoundError(2, "No such file or directory", f"helper --key {SECRET}"), "No such file"),
        (json.JSONDecodeError("x", SECRET, 0), "credential_process prints no JSON"),
    ],
    ids=repr,
)
def test_an_error_of_a_library_names_its_cause_and_quotes_nothing(error: Exception, cause: str) -> None:
    shown = cause_of(error, {"AWS_WEB_IDENTITY_TOKEN_FILE": SECRET})
    assert shown.startswith(type(error).__name__)
    assert cause in shown
    assert "SECRET" not in shown


@pytest.mark.parametrize("folder", ["data/stores", "night/machines"])
def test_code_beside_cloud_libraries_quotes_no_exception(folder: str) -> None:
    for path in (ROOT / "plumbline" / folder).rglob("*.py"):
        for handler in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # A plain `ValueError` is of Plumbline's own check of a key or an address.
            if not isinstance(handler, ast.ExceptHandler) or ast.unparse(handler.type or handler) == "ValueError":
                continue
            for node in ast.walk(handler):
                values = [node.value] if isinstance(node, ast.FormattedValue) else []
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"str", "repr"}:
                    values = node.args
                quoted = [value for value in values if isinstance(value, ast.Name) and value.id == handler.name]
                assert not quoted, f"{path}:{node.lineno}: use foreign_errors.cause_of"


@pytest.mark.parametrize(
    ("text", "is_used"),
    [
        ("BlobEndpoint=https://acme.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x", True),
        ("BlobEndpoint=http://127.0.0.1:10000/acme;SharedAccessSignature=sv=1&sig=x", True),
        ("BlobEndpoint=https://acme2.blob.core.windows.net/;SharedAccessSignature=sv=1&sig=x", False),
    ],
)
def test_the_portals_string_with_a_sas_is_of_the_account_in_its_address(
    monkeypatch: pytest.MonkeyPatch, text: str, is_used: bool
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "other")
    assert (find_access("acme").sas == "sv=1&sig=x") == is_used
