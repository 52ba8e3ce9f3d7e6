"""Google Cloud Storage requests (JSON API, signed URLs), authorized by google-auth.

Credentials are Google's own chain (Application Default Credentials): a service account file or workload identity
federation (`GOOGLE_APPLICATION_CREDENTIALS`), gcloud's login (`gcloud auth application-default login`), or the
metadata server of the machine or pod. `GOOGLE_CLOUD_QUOTA_PROJECT` is the project that a requester-pays bucket bills.
`PLUMBLINE_GS_ENDPOINT` replaces the endpoint; `STORAGE_EMULATOR_HOST` does so without credentials, as in Google's own
clients. An environment without credentials sends requests without them, which a public bucket answers.

Signed URLs: https://cloud.google.com/storage/docs/access-control/signing-urls-manually
"""

from __future__ import annotations

import hashlib
import logging
import threading
import warnings
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, urlsplit

from plumbline.data.stores.foreign_errors import cause_of
from plumbline.data.stores.protocol import StoreUnavailableError
from plumbline.data.stores.service_errors import GOOGLE, Answer, no_credentials, response_error, unsendable
from plumbline.schema.errors import AccessError, ConfigurationError, PlumblineError, Refusal
from plumbline.schema.variables import variable

_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_POOL = 64


class MediaResponse:
    """Response with an object's bytes; its generation serves as etag."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.status = int(response.status_code)

    def header(self, name: str) -> str:
        """Return a header's value, or ""."""
        return str(self._response.headers.get("x-goog-generation" if name == "etag" else name, ""))

    def read1(self, size: int, /) -> bytes:
        """Return the bytes that have arrived, as stored."""
        from urllib3.exceptions import HTTPError

        try:
            chunk: bytes = self._response.raw.read1(size, decode_content=False)
        except HTTPError as error:
            raise StoreUnavailableError(f"the transfer broke off: {type(error).__name__}") from error
        return chunk

    def release(self, *, at_end: bool) -> None:
        """Release the connection, for reuse if the body was read completely."""
        if at_end:
            self._response.raw.release_conn()
        else:
            self._response.close()


class GoogleApi:
    """Session with Google's JSON API that checks responses."""

    def __init__(self, where: str, *, connect_seconds: float, read_seconds: float) -> None:
        self._where = where
        self._timeouts = (connect_seconds, read_seconds)
        self._lock = threading.Lock()
        self._session: Any = None
        self.credentials: Any = None
        self.endpoint = ""
        self._is_anonymous = False
        """Whether this environment has no credentials: only a public bucket answers."""

    def connect(self) -> None:
        """Find endpoint and credentials, on first use.

        Raises:
            AccessError: if the credentials that this environment names are missing or damaged.
            ConfigurationError: if credentials would be sent unencrypted to a different machine.
        """
        with self._lock:
            if self._session is not None:
                return
            emulator = variable("STORAGE_EMULATOR_HOST")
            endpoint = variable("PLUMBLINE_GS_ENDPOINT", emulator)
            anonymous = bool(emulator) and endpoint == emulator
            self.endpoint = self._checked_endpoint(endpoint or "https://storage.googleapis.com", anonymous=anonymous)
            self.credentials = self._find_credentials(anonymous=anonymous)
            self._session = self._make_session()

    def _checked_endpoint(self, endpoint: str, *, anonymous: bool) -> str:
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        parts = urlsplit(endpoint)
        local = parts.hostname in ("127.0.0.1", "localhost", "::1")
        if parts.scheme != "https" and not (parts.scheme == "http" and (local or anonymous)):
            text = f"{endpoint!r} would receive an access token unencrypted"
            raise ConfigurationError(text, where=self._where, key="PLUMBLINE_GS_ENDPOINT", hint="use https://")
        return endpoint.rstrip("/")

    def _find_credentials(self, *, anonymous: bool) -> Any:
        import google.auth
        from google.auth import exceptions
        from google.auth.credentials import AnonymousCredentials

        if anonymous:
            return AnonymousCredentials()  # type: ignore[no-untyped-call]
        # google-auth warns for each attempt without a metadata server: one error is enough.
        for name in ("google.auth", "urllib3.connectionpool"):
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return google.auth.default(scopes=[_SCOPE])[0]
        except exceptions.GoogleAuthError as error:
            is_absent = isinstance(error, exceptions.DefaultCredentialsError)
            if is_absent and not variable("GOOGLE_APPLICATION_CREDENTIALS"):
                self._is_anonymous = True
                return AnonymousCredentials()  # type: ignore[no-untyped-call]
            raise credentials_error(error, self._where) from error

    def _make_session(self) -> Any:
        from google.auth.transport.requests import AuthorizedSession
        from requests.adapters import HTTPAdapter

        # No internal retry: a sent body cannot be sent again from its current position.
        session: Any = AuthorizedSession(self.credentials, refresh_status_codes=())  # type: ignore[no-untyped-call]
        for scheme in ("http://", "https://"):
            session.mount(scheme, HTTPAdapter(pool_maxsize=_POOL, max_retries=0))
        return session

    def request(self, method: str, path: str, *, key: str, expected: tuple[int, ...] = (200,), **options: Any) -> Any:
        """Send a request; return the response if its status is expected."""
        from google.auth.exceptions import GoogleAuthError
        from requests.exceptions import RequestException

        self.connect()
        url = path if "://" in path else self.endpoint + path
        try:
            response = self._session.request(
                method, url, timeout=self._timeouts, max_allowed_time=None, allow_redirects=False, **options
            )
        except GoogleAuthError as error:
            raise credentials_error(error, self._where) from error
        except (RequestException, OSError) as error:
            if (refused := unsendable(error, self._where)) is not None:
                raise refused from error
            raise StoreUnavailableError(f"no answer: {type(error).__name__}", where=self._where) from error
        except Exception as error:
            raise no_credentials(GOOGLE, self._where, why=cause_of(error)) from error
        if response.status_code in expected:
            return response
        with response:
            code, message = _reason(response)
            answer = Answer(response.status_code, code, response.headers.get("Retry-After", ""), message)
            raise response_error(GOOGLE, answer, self._where, key, is_anonymous=self._is_anonymous)

    def json(self, method: str, path: str, *, key: str, **options: Any) -> Any:
        """Send a request; return the response's JSON document."""
        response = self.request(method, path, key=key, **options)
        return self.document(response)

    def document(self, response: Any) -> Any:
        """Parse a response's JSON document; raise `StoreUnavailableError` if damaged."""
        try:
            return response.json()
        except ValueError as error:
            raise StoreUnavailableError("the answer is not JSON", where=self._where) from error


def credentials_error(error: Any, where: str) -> PlumblineError:
    """Convert google-auth's error for missing or expired credentials."""
    from google.auth.exceptions import TransportError

    name = type(error).__name__
    # The metadata server or the token service does not answer, as in a pod's first seconds.
    if getattr(error, "retryable", False) or (isinstance(error, TransportError) and _status(error) != 404):
        return StoreUnavailableError(f"no access token: {name}", where=where)
    return no_credentials(GOOGLE, where, why=cause_of(error))


def _status(error: Any) -> int:
    """Return the metadata server's HTTP status, or 0."""
    return int(getattr(error.args[1], "status", 0)) if len(error.args) > 1 else 0


def _reason(response: Any) -> tuple[str, str]:
    """Return the service's error code and message."""
    try:
        error = response.json()["error"]
        code = error["errors"][0]["reason"] if error.get("errors") else error.get("status", "")
        return str(code), str(error.get("message", ""))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return "", ""


_HINT = "signing needs a service account: its file, or a machine's with roles/iam.serviceAccountTokenCreator on itself"


def url_to_sign(endpoint: str, bucket: str, name: str, seconds: int, *, email: str, now: datetime) -> tuple[str, bytes]:
    """Return the URL without signature, and the bytes to sign. Pure."""
    stamp = now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/auto/storage/goog4_request"
    path = f"/{quote(bucket, safe='')}/{quote(name, safe='/~')}"
    values = {
        "X-Goog-Algorithm": "GOOG4-RSA-SHA256",
        "X-Goog-Credential": f"{email}/{scope}",
        "X-Goog-Date": stamp,
        "X-Goog-Expires": str(seconds),
        "X-Goog-SignedHeaders": "host",
    }
    query = "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted(values.items()))
    host = urlsplit(endpoint).netloc
    request = "\n".join(["GET", path, query, f"host:{host}", "", "host", "UNSIGNED-PAYLOAD"])
    digest = hashlib.sha256(request.encode()).hexdigest()
    return f"{endpoint}{path}?{query}", f"GOOG4-RSA-SHA256\n{stamp}\n{scope}\n{digest}".encode()


def signed_url(credentials: Any, endpoint: str, bucket: str, name: str, seconds: int, *, where: str) -> str:
    """Return a signed link to an object, valid up to a week.

    Raises:
        AccessError: if the credentials cannot sign: a person's login, or a missing right.
        StoreUnavailableError: if the signing service does not answer.
    """
    from google.auth import exceptions
    from google.auth.iam import Signer
    from google.auth.transport.requests import Request

    email = getattr(credentials, "service_account_email", None) or ""
    try:
        if email == "default":
            credentials.refresh(Request())  # a token response contains the account's name
            email = credentials.service_account_email
        if not email:
            text = "these credentials cannot sign a link"
            raise AccessError(text, where=where, hint=_HINT, refusal=Refusal.PERMISSIONS)
        url, message = url_to_sign(endpoint, bucket, name, seconds, email=email, now=datetime.now(timezone.utc))
        if hasattr(credentials, "sign_bytes"):
            signature = credentials.sign_bytes(message)
        else:
            signature = Signer(Request(), credentials, email).sign(message)  # type: ignore[no-untyped-call]
    except exceptions.TransportError as error:
        raise StoreUnavailableError(f"no signature: {type(error).__name__}", where=where) from error
    except exceptions.GoogleAuthError as error:
        raise AccessError(f"no signature: {type(error).__name__}", where=where, hint=_HINT) from error
    return f"{url}&X-Goog-Signature={signature.hex()}"
