"""Signed URLs (version 4) of Google Cloud Storage, valid without credentials.

Source: https://cloud.google.com/storage/docs/access-control/signing-urls-manually
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from plumbline.errors import AccessError, Refusal
from plumbline.stores.protocol import StoreUnavailableError

__all__ = ["signed_url", "url_to_sign"]

_HINT = "signing needs a service account: its file, or a machine's with roles/iam.serviceAccountTokenCreator on itself"


def url_to_sign(endpoint: str, bucket: str, name: str, seconds: int, *, email: str, now: datetime) -> tuple[str, bytes]:
    """Return the URL without its signature, and the bytes to sign. Pure."""
    stamp = now.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
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
    """Return a link to an object, valid up to a week.

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
        url, message = url_to_sign(endpoint, bucket, name, seconds, email=email, now=datetime.now(UTC))
        if hasattr(credentials, "sign_bytes"):
            signature = credentials.sign_bytes(message)
        else:
            signature = Signer(Request(), credentials, email).sign(message)  # type: ignore[no-untyped-call]
    except exceptions.TransportError as error:
        raise StoreUnavailableError(f"no signature: {type(error).__name__}", where=where) from error
    except exceptions.GoogleAuthError as error:
        raise AccessError(f"no signature: {type(error).__name__}", where=where, hint=_HINT) from error
    return f"{url}&X-Goog-Signature={signature.hex()}"
