"""Credentials that a token service refuses or does not renew, or that no service answers for.

Whatever fails while credentials are found leaves a store as its own error: a raw error of an SDK would end the round
of every platform.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.storage.blob import ContainerSasPermissions, generate_container_sas
from google.auth.exceptions import RefreshError

from plumbline.data.stores import (
    ObjectMissingError,
    RetryPolicy,
    StoreUnavailableError,
    open_store,
    presign,
    read_bytes,
)
from plumbline.data.stores.azure_access import sdk_error
from plumbline.data.stores.google_api import credentials_error
from plumbline.data.stores.protocol import Store
from plumbline.night.central import CentralStore, gather, publish_record
from plumbline.night.machines import open_group
from plumbline.schema.errors import AccessError, ConfigurationError, Refusal, record_code
from tests.contract.conftest import ACCOUNT, ACCOUNT_KEY
from tests.contract.records import make_record, orders_of
from tests.http_server import Handler, serving

ONCE = RetryPolicy(attempts=1)

GRANT = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>
<Expiration>{until}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""
REFUSAL = '<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Code>{code}</Code></Error></ErrorResponse>'


class TokenService:
    """AWS's token service, and a bucket without objects at the same address."""

    def __init__(self) -> None:
        self.minutes = 60.0
        """Minutes until the given credentials end: an SDK renews them before each request if less than ten."""
        self.refusal: tuple[int, str] | None = None

    def answer(self) -> tuple[int, str]:
        if self.refusal is not None:
            return self.refusal[0], REFUSAL.format(code=self.refusal[1])
        until = datetime.now(UTC) + timedelta(minutes=self.minutes)
        return 200, GRANT.format(until=until.strftime("%Y-%m-%dT%H:%M:%SZ"))


def use_profiles(environment: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """Set AWS's profiles, and an endpoint that nothing serves."""
    (folder / "aws").write_text(text)
    environment.setenv("AWS_CONFIG_FILE", str(folder / "aws"))
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")


@pytest.fixture
def tokens(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TokenService]:
    """Give this environment a role, as a controller in a different account has."""
    state = TokenService()

    class Service(Handler):
        def answer(self) -> None:
            self.body()
            status, text = 200, ""
            if self.command == "POST":
                status, text = state.answer()
            elif "list-type" in self.path:
                text = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
            elif self.command in {"GET", "HEAD"}:
                status = 404
            self.reply(status, text.encode(), {"ETag": '"1"'})

    use_profiles(
        clean_environment, tmp_path,
        "[profile robot]\nrole_arn = arn:aws:iam::123456789012:role/robot\nsource_profile = base\n"
        "[profile base]\naws_access_key_id = AKIDBASE\naws_secret_access_key = secret\n",
    )  # fmt: skip
    clean_environment.setenv("AWS_PROFILE", "robot")
    clean_environment.setenv("AWS_MAX_ATTEMPTS", "1")
    with serving(Service) as url:
        clean_environment.setenv("AWS_ENDPOINT_URL", url)
        yield state


USES: dict[str, Callable[[Store], object]] = {
    "open": lambda store: read_bytes(store, "key"),
    "stat": lambda store: store.stat("key"),
    "list": lambda store: list(store.list()),
    "create": lambda store: store.create("key", b"x"),
    "swap": lambda store: store.swap("key", b"x", if_match="1"),
    "delete": lambda store: store.delete("key"),
    "link": lambda store: presign(store, "key"),
}


def failing(use: Callable[[Store], object], store: Store) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the class is what the callers check
        use(store)
    return caught.value


def s3() -> Store:
    """Return the store below the retry policy, which makes an end of what may pass."""
    return open_store("s3://bucket", policy=ONCE).inner  # type: ignore[attr-defined,no-any-return]


def test_a_refused_role_is_refused_access_in_every_use_of_a_store(tokens: TokenService) -> None:
    store, tokens.refusal = s3(), (403, "AccessDenied")
    for name, use in USES.items():
        error = failing(use, store)
        assert isinstance(error, AccessError), (name, error)
        assert error.refusal is Refusal.CREDENTIALS
        assert str(error) == (
            "s3://bucket: no usable credentials: AssumeRole answered HTTP 403 AccessDenied "
            "(hint: check the credentials of this environment: variables, profile or identity)"
        )


def test_a_role_that_is_refused_later_is_refused_access_in_every_use_of_a_store(tokens: TokenService) -> None:
    store, tokens.minutes = s3(), 5.0
    for use in USES.values():
        with suppress(ObjectMissingError):
            use(store)
    tokens.refusal = (400, "ExpiredTokenException")
    for name, use in USES.items():
        error = failing(use, store)
        assert isinstance(error, AccessError), (name, error)
        assert "AssumeRole answered HTTP 400 ExpiredTokenException" in str(error), name


def test_an_outbox_that_refuses_the_controller_takes_no_other_platform_along(
    tokens: TokenService, tmp_path: Path
) -> None:
    tokens.refusal = (403, "AccessDenied")
    outboxes = {"aws": open_store("s3://outbox"), "onprem": open_store(f"file://{tmp_path}/outbox")}
    publish_record(outboxes["onprem"], make_record(tmp_path / "made", "record-2", "onprem"))
    central = CentralStore(open_store(f"file://{tmp_path}/central"))
    gathered = gather(outboxes, orders_of({"aws": "record-1", "onprem": "record-2"}), central, tmp_path / "into")
    assert {name: item.state for name, item in gathered.items()} == {"aws": "unreachable", "onprem": "complete"}
    assert "AssumeRole answered HTTP 403 AccessDenied" in gathered["aws"].why


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "Throttling", StoreUnavailableError),
        (400, "IDPCommunicationError", StoreUnavailableError),
        (503, "ServiceUnavailable", StoreUnavailableError),
        (404, "ResourceNotFoundException", AccessError),
        (400, "ValidationError", AccessError),
    ],
)
def test_a_token_service_that_is_busy_passes_and_one_that_refuses_does_not(
    tokens: TokenService, status: int, code: str, kind: type[Exception]
) -> None:
    tokens.refusal = (status, code)
    error = failing(USES["open"], s3())
    assert isinstance(error, kind), error
    assert f"HTTP {status} {code}" in str(error)
    assert record_code(error) in {"access", "unavailable"}


@pytest.mark.usefixtures("tokens")
def test_a_token_service_that_does_not_answer_passes(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:1")
    assert isinstance(failing(USES["open"], s3()), StoreUnavailableError)


def test_credentials_that_have_ended_when_they_arrive_are_refused_access(tokens: TokenService) -> None:
    tokens.minutes = -1.0
    error = failing(USES["open"], s3())
    assert isinstance(error, AccessError), error
    assert error.refusal is Refusal.CREDENTIALS


@pytest.mark.parametrize(
    ("variables", "content", "words"),
    [
        ({"AWS_PROFILE": "gone"}, "", "check AWS_PROFILE"),
        # The locks have no awscrt, without which botocore reads no session of `aws login`.
        ({"AWS_PROFILE": "login"}, "[profile login]\nlogin_session = arn:aws:iam::1:user/me\n", "pip install awscrt"),
        ({"AWS_PROFILE": "tool"}, "[profile tool]\ncredential_process = /gone/tool\n", "/gone/tool: No such"),
        (
            {"AWS_PROFILE": "tool"},
            "[profile tool]\ncredential_process = echo no-json\n",
            "credential_process prints no JSON",
        ),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/gone/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/pod"},
            "",
            "AWS_WEB_IDENTITY_TOKEN_FILE: No such file",
        ),
    ],
    ids=["no profile", "login", "no tool", "damaged tool", "no token"],
)
def test_credentials_that_this_machine_does_not_have_are_refused_access(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], content: str, words: str
) -> None:
    """A machine without its profile or login says nothing about a training: `setting` would make it invalid."""
    use_profiles(clean_environment, tmp_path, content)
    for name, value in variables.items():
        clean_environment.setenv(name, value)
    error = failing(USES["open"], s3())
    assert isinstance(error, AccessError), error
    assert (error.refusal, record_code(error)) == (Refusal.CREDENTIALS, "access")
    assert words in str(error)


@pytest.mark.usefixtures("tokens")
def test_a_wrong_file_of_authorities_is_wrong_configuration(clean_environment: pytest.MonkeyPatch) -> None:
    clean_environment.setenv("AWS_CA_BUNDLE", "/gone/authorities.pem")
    clean_environment.setenv("AWS_ENDPOINT_URL_S3", "https://127.0.0.1:1")
    error = failing(USES["open"], s3())
    assert isinstance(error, ConfigurationError), error
    assert "/gone/authorities.pem" in str(error)


def test_a_profile_that_asks_for_an_mfa_code_is_refused_where_nobody_can_answer(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_profiles(
        clean_environment, tmp_path,
        "[profile base]\naws_access_key_id = k\naws_secret_access_key = s\n"
        "[profile far]\nrole_arn = arn:aws:iam::1:role/far\nsource_profile = team\n"
        "[profile team]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\nmfa_serial = arn:aws:iam::1:mfa/me\n",
    )  # fmt: skip
    for profile in ("team", "far"):
        clean_environment.setenv("AWS_PROFILE", profile)
        for use in (lambda: USES["open"](s3()), open_group("aws://eu-west-1/gpus").size):
            with pytest.raises(AccessError, match="the profile team asks for an MFA code") as caught:
                use()
            assert "aws sts get-session-token" in caught.value.hint


@pytest.mark.parametrize("is_cached", [True, False])
def test_an_ended_sso_session_names_the_command_and_prints_nothing(
    clean_environment: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], is_cached: bool
) -> None:
    use_profiles(
        clean_environment, tmp_path,
        "[profile team]\nsso_session = acme\nsso_account_id = 1\nsso_role_name = Reader\n"
        "[sso-session acme]\nsso_start_url = https://acme.example/start\nsso_region = us-east-1\n",
    )  # fmt: skip
    cache = tmp_path / ".aws/sso/cache"
    cache.mkdir(parents=True)
    token = {
        "startUrl": "https://acme.example/start", "region": "us-east-1", "accessToken": "x",
        "expiresAt": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    if is_cached:
        (cache / f"{hashlib.sha1(b'acme', usedforsecurity=False).hexdigest()}.json").write_text(json.dumps(token))
    clean_environment.setenv("HOME", str(tmp_path))
    clean_environment.setenv("AWS_PROFILE", "team")
    for use in (lambda: USES["open"](s3()), open_group("aws://eu-west-1/gpus").size):
        with pytest.raises(AccessError) as caught:
            use()
        assert caught.value.refusal is Refusal.ENDED
        assert "`aws sso login --profile team`" in caught.value.hint
    assert "Traceback" not in capfd.readouterr().err


class MetadataService:
    """Azure's source of tokens for a machine's identity."""

    status, text = 200, ""


@pytest.fixture
def identity(clean_environment: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MetadataService]:
    """Give this environment the identity of its machine, and no waits of the SDK."""
    state = MetadataService()

    class Source(Handler):
        def answer(self) -> None:
            self.reply(state.status, state.text.encode(), {"Content-Type": "application/json"})

    clean_environment.setattr(time, "sleep", lambda _: None)
    clean_environment.setenv("AZURE_TOKEN_CREDENTIALS", "ManagedIdentityCredential")
    clean_environment.setenv("PATH", str(tmp_path))
    with serving(Source) as url:
        clean_environment.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        # The SDK sends a token to https:// only, and without one nothing is sent at all.
        clean_environment.setenv("PLUMBLINE_AZURE_ENDPOINT", "https://127.0.0.1:1/{account}")
        yield state


def az() -> Store:
    """Return the store below the retry policy."""
    return open_store("az://acme/box", policy=ONCE).inner  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(503, StoreUnavailableError), (429, StoreUnavailableError), (400, AccessError), (401, AccessError)],
)
def test_a_busy_source_of_tokens_passes_and_a_refusal_does_not(
    identity: MetadataService, status: int, kind: type[Exception]
) -> None:
    identity.status, identity.text = status, '{"error": "x"}'
    assert isinstance(error := failing(USES["open"], az()), kind), error


@pytest.mark.parametrize(
    "variables",
    [
        {"AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://127.0.0.1:1"},
        {
            "AZURE_TOKEN_CREDENTIALS": "", "AZURE_AUTHORITY_HOST": "https://127.0.0.1:1", "AZURE_CLIENT_ID": "x",
            "AZURE_CLIENT_SECRET": "x", "AZURE_TENANT_ID": "11111111-1111-1111-1111-111111111111",
            "HTTPS_PROXY": "http://127.0.0.1:1",
        },
    ],
    ids=["machine", "secret"],
)  # fmt: skip
@pytest.mark.usefixtures("identity")
def test_a_source_of_tokens_that_does_not_answer_passes(
    clean_environment: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        clean_environment.setenv(name, value)
    store = az()
    for use in ("open", "stat"):
        assert isinstance(error := failing(USES[use], store), StoreUnavailableError), error


@pytest.mark.parametrize("use", ["open", "stat", "link"])
def test_a_damaged_key_of_an_account_is_refused_access(clean_environment: pytest.MonkeyPatch, use: str) -> None:
    clean_environment.setenv("AZURE_STORAGE_KEY", "abc")
    clean_environment.setenv("PLUMBLINE_AZURE_ENDPOINT", "http://127.0.0.1:1/{account}")
    assert isinstance(error := failing(USES[use], az()), AccessError), error


def test_an_authentication_error_is_refused_access_whatever_its_status() -> None:
    """Entra answers HTTP 400 to a wrong client or an expired secret."""
    for status, kind in ((400, AccessError), (401, AccessError), (404, AccessError), (503, StoreUnavailableError)):
        response: Any = SimpleNamespace(status_code=status, reason="", headers={}, text=lambda: "")
        error = sdk_error(ClientAuthenticationError(message="x", response=response), "az://acme/box", "key")
        assert isinstance(error, kind), status


@pytest.mark.usefixtures("azure")
def test_an_ended_token_of_azure_is_named(clean_environment: pytest.MonkeyPatch) -> None:
    """A SAS token that ended an hour ago, on Azurite."""
    ends = datetime.now(UTC) - timedelta(hours=1)
    sas = generate_container_sas(
        ACCOUNT, "box", account_key=ACCOUNT_KEY, permission=ContainerSasPermissions(read=True, write=True), expiry=ends
    )
    clean_environment.delenv("AZURE_STORAGE_KEY")
    clean_environment.setenv("AZURE_STORAGE_SAS_TOKEN", sas)
    store = open_store(f"az://{ACCOUNT}/box", policy=ONCE)
    for name in ("open", "stat", "create", "list"):
        error = failing(USES[name], store)
        assert isinstance(error, AccessError), error
        assert error.refusal is Refusal.ENDED, (name, str(error))
        assert "sig=" not in str(error)


@pytest.mark.parametrize(
    ("said", "refusal", "hint"),
    [
        ("invalid_grant: Token has been expired or revoked.", Refusal.ENDED, "gcloud auth application-default login"),
        ("Reauthentication is needed", Refusal.ENDED, "gcloud"),
        ("invalid_grant: Invalid JWT: Token must be in a reasonable timeframe.", Refusal.CLOCK, "time service"),
        ("invalid_grant: Invalid JWT Signature.", Refusal.CREDENTIALS, "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_a_cause_that_google_names_is_told_as_that_of_other_clouds(said: str, refusal: Refusal, hint: str) -> None:
    refused = RefreshError(said, {"error": "invalid_grant"})  # type: ignore[no-untyped-call]
    error = credentials_error(refused, "gs://bucket")
    assert isinstance(error, AccessError)
    assert (error.refusal, said in str(error), hint in error.hint) == (refusal, True, True)


@pytest.mark.parametrize(
    ("said", "refusal", "hint"),
    [
        ("AADSTS700082: The refresh token has expired due to inactivity.", Refusal.ENDED, "az login"),
        ("\tAzureCliCredential: Please run 'az login' to setup account.", Refusal.ENDED, "az login"),
        ("AADSTS7000215: Invalid client secret provided.", Refusal.CREDENTIALS, "AZURE_STORAGE_*"),
    ],
)
def test_a_cause_that_entra_names_is_told_as_that_of_other_clouds(said: str, refusal: Refusal, hint: str) -> None:
    error = sdk_error(ClientAuthenticationError(message=f"The chain failed.\n{said}\nTrace ID: 1"), "az://a/box", "")
    assert isinstance(error, AccessError)
    assert (error.refusal, said.strip() in str(error), hint in error.hint) == (refusal, True, True)
    assert "The chain" not in str(error)


def test_a_metadata_service_that_has_answered_before_passes(
    identity: MetadataService, clean_environment: pytest.MonkeyPatch
) -> None:
    """A token that ends within five minutes is renewed at the next use."""
    identity.text = f'{{"access_token": "abc", "expires_in": "200", "expires_on": "{time.time() + 200:.0f}"}}'
    clean_environment.setenv("AZURE_TOKEN_CREDENTIALS", "")
    store = az()
    assert "ConnectionRefusedError" in str(failing(USES["open"], store))
    clean_environment.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://[fe80::1]:1")
    assert "no answer: ServiceRequestError" in str(error := failing(USES["open"], store))
    assert isinstance(error, StoreUnavailableError)
