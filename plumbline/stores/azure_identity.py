"""Identity of this environment in Azure, which knows whether a missing token was refused or not answered.

azure-identity's `DefaultAzureCredential` tries a chain of identities and reports all failures as one sentence. The
requests that it sends, seen through azure-core's hooks, show what happened: no response is a failure of the network.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import threading
from typing import Any
from urllib.parse import urlsplit

from plumbline.variables import variable

__all__ = ["Identity"]

_BUSY = {408, 410, 429}
"""Statuses that pass; the metadata service answers 410 while it is updated."""


class _Exchange(threading.local):
    """The last token request of a thread: its URL, and its response's status once there is one."""

    url = ""
    status: int | None = None


class Identity:
    """Credential for the SDK's clients: azure-identity's default chain."""

    def __init__(self) -> None:
        from azure.identity import DefaultAzureCredential

        # The SDK logs fifteen lines on missing identities: one error line is enough.
        logging.getLogger("azure.identity").setLevel(logging.ERROR)
        self._last = _Exchange()
        self._is_proven = False
        self._chain = DefaultAzureCredential(
            exclude_interactive_browser_credential=True,
            raw_request_hook=self._requested,
            raw_response_hook=self._answered,
        )

    def _requested(self, request: Any) -> None:
        self._last.url, self._last.status = request.http_request.url, None

    def _answered(self, response: Any) -> None:
        self._last.status = int(response.http_response.status_code)

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """Return an access token.

        Raises:
            ServiceRequestError: if the source of tokens does not answer, or is busy.
            ClientAuthenticationError: if it refuses, or there is none.
        """
        from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

        self._last.url, self._last.status = "", None
        try:
            token = self._chain.get_token(*scopes, **options)
        except ClientAuthenticationError as error:
            if not self._may_pass():
                raise
            raise ServiceRequestError("the source of tokens does not answer") from error
        self._is_proven = True
        return token

    def exists(self, *scopes: str) -> bool:
        """Return whether this environment has an identity; raise as `get_token` if one is refused.

        Without one no source of tokens answers, and none is named.
        """
        from azure.core.exceptions import ClientAuthenticationError

        try:
            self.get_token(*scopes)
        except ClientAuthenticationError:
            is_answered = self._last.status is not None and not _is_link_local(self._last.url)
            if is_answered or variable("AZURE_TOKEN_CREDENTIALS"):
                raise
            return False
        return True

    def _may_pass(self) -> bool:
        status = self._last.status
        if status is not None:
            return status >= 500 or status in _BUSY
        # Without a named identity, a machine outside Azure looks for a metadata service that does not exist.
        is_probe = not (self._is_proven or variable("AZURE_TOKEN_CREDENTIALS")) and _is_link_local(self._last.url)
        return bool(self._last.url) and not is_probe


def _is_link_local(url: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(urlsplit(url).hostname or "").is_link_local
    return False
