"""Links to an object, valid without credentials for a limited time."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from plumbline.stores.protocol import Store
from plumbline.stores.retry import RetryingStore

__all__ = ["LONGEST_SECONDS", "presign"]

LONGEST_SECONDS = 7 * 24 * 3600
"""Maximum lifetime on S3, Azure (with an identity) and Google, in seconds."""


@runtime_checkable
class _Signer(Protocol):
    def presign(self, key: str, seconds: int) -> str: ...


def presign(store: Store, key: str, seconds: int = LONGEST_SECONDS) -> str | None:
    """Return a link to the object for `seconds`; `None` if the store has no links.

    With temporary credentials the link ends with them, whatever `seconds` says.

    Raises:
        AccessError: if the credentials of this environment cannot sign.
    """
    inner = store.inner if isinstance(store, RetryingStore) else store
    return inner.presign(key, seconds) if isinstance(inner, _Signer) else None
