"""Managed instance group of Google Compute Engine, by its REST API.

Needs `compute.instanceGroupManagers.get` and `.update`. Source:
https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers/resize
"""

from __future__ import annotations

from typing import Any

from plumbline.errors import AccessError
from plumbline.machines.group import ask

_ENDPOINT = "https://compute.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/compute"


class ManagedInstanceGroup:
    """`MachineGroup` of one zone."""

    def __init__(self, url: str, project: str, zone: str, name: str) -> None:
        self._url = url
        self._address = f"{_ENDPOINT}/compute/v1/projects/{project}/zones/{zone}/instanceGroupManagers/{name}"

    def size(self) -> int:
        """Return the target size."""
        return int(ask(self._session(), "GET", self._address, where=self._url)["targetSize"])

    def resize(self, count: int) -> None:
        """Set the target size."""
        ask(self._session(), "POST", f"{self._address}/resize?size={count}", where=self._url)

    def _session(self) -> Any:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession

        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
        except GoogleAuthError as error:
            raise AccessError(f"no credentials: {error}", where=self._url) from error
        return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
