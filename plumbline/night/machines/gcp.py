"""Google Compute Engine managed instance groups, by REST API.

Needs `compute.instanceGroupManagers.get` and `.update`. Source:
https://cloud.google.com/compute/docs/reference/rest/v1/instanceGroupManagers/resize
"""

from __future__ import annotations

from typing import Any

from plumbline.data.stores.google_api import credentials_error
from plumbline.night.machines.group import ask

_ENDPOINT = "https://compute.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/compute"


class ManagedInstanceGroup:
    """Zonal managed instance group as a `MachineGroup`."""

    def __init__(self, url: str, project: str, zone: str, name: str) -> None:
        self._url = url
        self._address = f"{_ENDPOINT}/compute/v1/projects/{project}/zones/{zone}/instanceGroupManagers/{name}"

    def size(self) -> int:
        """Return the group's target size."""
        return int(self._ask("GET", self._address)["targetSize"])

    def resize(self, count: int) -> None:
        """Set the group's target size."""
        self._ask("POST", f"{self._address}/resize?size={count}")

    def _ask(self, method: str, address: str) -> dict[str, Any]:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession

        try:
            credentials, _ = google.auth.default(scopes=[_SCOPE])
            session = AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
            return ask(session, method, address, where=self._url)
        except GoogleAuthError as error:
            raise credentials_error(error, self._url) from error
