"""Azure virtual machine scale sets, by REST API.

Needs `Microsoft.Compute/virtualMachineScaleSets/read` and `/write`. Source:
https://learn.microsoft.com/rest/api/compute/virtual-machine-scale-sets/update
"""

from __future__ import annotations

from typing import Any

from plumbline.data.stores.azure_access import sdk_error
from plumbline.night.machines.group import ask

_ENDPOINT = "https://management.azure.com"
_VERSION = "2024-07-01"


class ScaleSet:
    """Azure scale set (flexible or uniform) as a `MachineGroup`."""

    def __init__(self, url: str, subscription: str, group: str, name: str) -> None:
        path = f"subscriptions/{subscription}/resourceGroups/{group}/providers/Microsoft.Compute"
        self._url = url
        self._address = f"{_ENDPOINT}/{path}/virtualMachineScaleSets/{name}?api-version={_VERSION}"

    def size(self) -> int:
        """Return the scale set's capacity."""
        return int(self._sku(self._session())["capacity"])

    def resize(self, count: int) -> None:
        """Set the scale set's capacity, keeping the SKU's name and tier."""
        session = self._session()
        changed = {**self._sku(session), "capacity": count}
        ask(session, "PATCH", self._address, where=self._url, body={"sku": changed})

    def _sku(self, session: Any) -> dict[str, Any]:
        found = ask(session, "GET", self._address, where=self._url)["sku"]
        return dict(found)

    def _session(self) -> Any:
        from azure.identity import DefaultAzureCredential
        from requests import Session

        session = Session()
        try:
            token = DefaultAzureCredential().get_token(f"{_ENDPOINT}/.default").token
        except Exception as error:
            raise sdk_error(error, self._url, "") from error
        session.headers["Authorization"] = f"Bearer {token}"
        return session
