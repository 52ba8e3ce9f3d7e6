"""AWS Signature Version 4 of a GET request.

Source: https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

__all__ = ["signed_headers"]

_EMPTY = hashlib.sha256(b"").hexdigest()


@lru_cache(maxsize=8)
def _signing_key(secret: str, date: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signed_headers(
    host: str,
    path: str,
    *,
    access_key: str,
    secret_key: str,
    token: str | None,
    region: str,
    stamp: str,
    payer: str = "",
) -> dict[str, str]:
    """Return the headers that authorize a GET of `path` (quoted) at `host`."""
    headers = {"host": host, "x-amz-content-sha256": _EMPTY, "x-amz-date": stamp}
    if payer:
        headers["x-amz-request-payer"] = payer
    if token:
        headers["x-amz-security-token"] = token
    names = ";".join(headers)
    listed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    digest = hashlib.sha256(f"GET\n{path}\n\n{listed}\n{names}\n{_EMPTY}".encode()).hexdigest()
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    message = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}".encode()
    signature = hmac.digest(_signing_key(secret_key, stamp[:8], region), message, "sha256").hex()
    authorization = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "Authorization": authorization}
