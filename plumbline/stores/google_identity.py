"""The access token of the machine or pod that this runs on, from Google's metadata server: no key to keep."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from plumbline.errors import AccessError
from plumbline.stores.base import StoreUnavailableError

__all__ = ["MachineToken"]

_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
_TIMEOUT_SECONDS = 3.0
_EARLY_SECONDS = 120.0
_MEND = "set GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY, or run with a service account"


class MachineToken:
    """The token of the default service account, asked for again before it ends."""

    def __init__(self, where: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._where = where
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._until = 0.0

    def give(self, request: Any, **_: Any) -> None:
        """Authorize a prepared request of botocore: its `before-send` event."""
        request.headers["Authorization"] = f"Bearer {self.value()}"

    def value(self) -> str:
        """The token as it is now.

        `AccessError` where there is no metadata server, or it has none to give; `StoreUnavailableError` where one does
        not answer yet, as in a pod's first seconds.
        """
        with self._lock:
            if self._clock() >= self._until:
                self._token, seconds = self._ask()
                self._until = self._clock() + seconds - _EARLY_SECONDS
            return self._token

    def _ask(self) -> tuple[str, float]:
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        request = urllib.request.Request(f"http://{host}{_PATH}", headers={"Metadata-Flavor": "Google"})
        # Never through a proxy: the token is this machine's own.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                found = json.loads(answer.read(1 << 16))
                return str(found["access_token"]), float(found["expires_in"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if _may_pass(error):
                raise StoreUnavailableError(f"no token from the metadata server: {error}", where=host) from error
            why = str(error) if isinstance(error, urllib.error.HTTPError) else type(error).__name__
            what = f"no usable credentials: no HMAC keys, and no token from a metadata server ({why})"
            raise AccessError(what, where=self._where, mend=_MEND) from error


def _may_pass(error: Exception) -> bool:
    """Whether the server may answer yet. A name that nobody knows is of no machine of Google's."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code == 429
    reason = getattr(error, "reason", error)
    if isinstance(reason, socket.gaierror):
        return reason.errno == socket.EAI_AGAIN
    return isinstance(reason, TimeoutError | ConnectionError)
