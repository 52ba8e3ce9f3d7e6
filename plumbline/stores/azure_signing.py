"""Authorization of GET requests to Azure Blob Storage.

Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key
"""

from __future__ import annotations

import base64
import hmac
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["IdentityToken", "shared_key"]

_SCOPE = "https://storage.azure.com/.default"
_EARLY_SECONDS = 300.0
_SIGNED = ("If-Match", "Range")


def shared_key(account: str, key: str, path: str, headers: Mapping[str, str]) -> str:
    """Return the Authorization header of a GET of `path` (quoted), by account key."""
    match, span = (headers.get(name, "") for name in _SIGNED)
    own = sorted((name.lower(), value) for name, value in headers.items() if name.lower().startswith("x-ms-"))
    listed = "".join(f"{name}:{value}\n" for name, value in own)
    message = f"GET\n\n\n\n\n\n\n\n{match}\n\n\n{span}\n{listed}/{account}{path}"
    signature = hmac.digest(base64.b64decode(key), message.encode(), "sha256")
    return f"SharedKey {account}:{base64.b64encode(signature).decode()}"


class IdentityToken:
    """Access token of an identity, renewed before it expires."""

    def __init__(self, credential: Any, clock: Callable[[], float] = time.time) -> None:
        self._credential = credential
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def header(self) -> str:
        """Return the Authorization header."""
        with self._lock:
            if self._clock() >= self._until - _EARLY_SECONDS:
                token = self._credential.get_token(_SCOPE)
                self._token, self._until = token.token, float(token.expires_on)
            return f"Bearer {self._token}"
