"""Alert state of a suite in the central store, updated by compare-and-swap."""

from __future__ import annotations

from collections.abc import Callable

from plumbline.data.stores import ensure_object
from plumbline.night.alerts.state import AlertState
from plumbline.night.central import CentralStore
from plumbline.schema.base import read_model
from plumbline.schema.digest import canonical_json, digest_bytes
from plumbline.schema.errors import InvalidInputError


class AlertBook:
    """Alert state stored as `alerts/SUITE.json` in the central store."""

    def __init__(self, central: CentralStore, suite: str) -> None:
        self._central = central
        self._suite = suite
        self._key = f"alerts/{suite}.json"

    def read(self) -> AlertState:
        """Return the stored alert state."""
        return self._parse(self._central.read_document(self._key))

    def repair(self) -> str:
        """Replace an unreadable state with an empty one; describe that.

        The unreadable document is kept in `alerts/damaged/`. With an empty state, open troubles are alerted again.
        """
        data = self._central.read_document(self._key)
        try:
            _ = self._parse(data)
        except InvalidInputError as error:
            aside = f"alerts/damaged/{self._suite}-{digest_bytes(data or b'')[:12]}.json"
            ensure_object(self._central.store, aside, data or b"")
            empty = canonical_json(AlertState().to_json())
            self._central.change_document(self._key, lambda now: empty if now == data else None)
            kept = f"{self._central.store.url}/{aside}"
            return (
                f"{error}. The alert state was reset: open problems are alerted again. The document is kept as {kept}"
            )
        return ""

    def _parse(self, data: bytes | None) -> AlertState:
        where = f"{self._central.store.url}/{self._key}"
        return read_model(AlertState, data, where=where) if data is not None else AlertState()

    def change(self, change: Callable[[AlertState], AlertState]) -> AlertState:
        """Apply a change to the stored state, and return the new state."""
        changed = AlertState()

        def apply(data: bytes | None) -> bytes | None:
            nonlocal changed
            state = self._parse(data)
            changed = change(state)
            return canonical_json(changed.to_json()) if changed != state else None

        self._central.change_document(self._key, apply)
        return changed
