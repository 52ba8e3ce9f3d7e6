"""Endpoint and credentials of a storage account, from the environment; authorization of reads.

`AZURE_STORAGE_CONNECTION_STRING` if it names the same account; else `PLUMBLINE_AZURE_ENDPOINT` (`{account}` is filled
in) or the public cloud's address, with `AZURE_STORAGE_KEY`, `AZURE_STORAGE_SAS_TOKEN` or azure-identity's
`DefaultAzureCredential`. An environment without any of them sends requests without credentials, which a public
container answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

from plumbline.variables import variable

__all__ = ["AzureAccess", "ReadAuthorization", "Renewed", "find_access"]

_SCOPE = "https://storage.azure.com/.default"
_SAS_SECONDS = 3600.0
_EARLY_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class AzureAccess:
    """Access to an account: connection string or endpoint, with key, SAS token or identity, or without credentials."""

    account: str
    endpoint: str
    connection_string: str = ""
    key: str = ""
    sas: str = ""
    identity: Any = None

    @property
    def is_anonymous(self) -> bool:
        """Return whether this environment has no credentials."""
        return not (self.connection_string or self.key or self.sas or self.identity)

    @property
    def credential(self) -> Any:
        """Return the credential in the form that the SDK's clients take."""
        if self.key:
            return {"account_name": self.account, "account_key": self.key}
        if self.sas:
            from azure.core.credentials import AzureSasCredential

            return AzureSasCredential(self.sas)
        return self.identity


def find_access(account: str) -> AzureAccess:
    """Return the environment's access to `account`; raise `ValueError` for a damaged connection string.

    Raises azure-core's errors if a source of tokens refuses, or does not answer.
    """
    pattern = variable("PLUMBLINE_AZURE_ENDPOINT", "https://{account}.blob.core.windows.net")
    endpoint = pattern.replace("{account}", account)
    text = variable("AZURE_STORAGE_CONNECTION_STRING")
    if f"AccountName={account};" in f"{text};":
        from azure.core.utils import parse_connection_string

        given = parse_connection_string(text)
        sas = given.get("sharedaccesssignature", "").lstrip("?")
        return AzureAccess(account, endpoint, text, key=given.get("accountkey", ""), sas=sas)
    if key := variable("AZURE_STORAGE_KEY"):
        return AzureAccess(account, endpoint, key=key)
    if token := variable("AZURE_STORAGE_SAS_TOKEN"):
        return AzureAccess(account, endpoint, sas=token.lstrip("?"))
    from plumbline.stores.azure_identity import Identity

    identity = Identity()
    return AzureAccess(account, endpoint, identity=identity if identity.exists(_SCOPE) else None)


class Renewed:
    """Value with an end, made again shortly before it; thread-safe."""

    def __init__(self, make: Callable[[], tuple[str, float]], clock: Callable[[], float] = time.time) -> None:
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._value, self._until = "", 0.0

    def get(self) -> str:
        """Return the value."""
        with self._lock:
            if self._clock() >= self._until - _EARLY_SECONDS:
                self._value, self._until = self._make()
            return self._value


class ReadAuthorization:
    """Authorization of GETs in one container: a read-only SAS of an hour, or an identity's token."""

    def __init__(self, access: AzureAccess, container: str) -> None:
        self._access = access
        self._container = container
        self._renewed = Renewed(self._token if access.identity is not None else self._container_sas)

    def _token(self) -> tuple[str, float]:
        token = self._access.identity.get_token(_SCOPE)
        return f"Bearer {token.token}", float(token.expires_on)

    def _container_sas(self) -> tuple[str, float]:
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        until = time.time() + _SAS_SECONDS
        sas = generate_container_sas(
            self._access.account, self._container, account_key=self._access.key,
            permission=ContainerSasPermissions(read=True), expiry=datetime.fromtimestamp(until, UTC),
        )  # fmt: skip
        return sas, until

    def apply(self, target: str) -> tuple[str, dict[str, str]]:
        """Return the target with its authorization, and further headers."""
        if self._access.identity is not None:
            return target, {"Authorization": self._renewed.get(), "x-ms-date": formatdate(usegmt=True)}
        if self._access.is_anonymous:
            return target, {}
        return f"{target}?{self._access.sas if not self._access.key else self._renewed.get()}", {}
