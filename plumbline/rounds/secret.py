"""The round's secret in the central store: made once, and the same for every controller of the round."""

from __future__ import annotations

import secrets

from plumbline.central import CentralStore
from plumbline.errors import InvalidInputError
from plumbline.stores import PreconditionFailedError

__all__ = ["round_secret"]

_BYTES = 32


def round_secret(central: CentralStore, round_id: str) -> str:
    """Return the secret of `round_id`, which the first controller that asks makes at random."""
    key = f"rounds/{round_id}/secret"
    found = central.read_pointer(key)
    if found is None:
        made = secrets.token_hex(_BYTES)
        try:
            central.swap_pointer(key, made.encode(), None)
        except PreconditionFailedError:
            found = central.read_pointer(key)
        else:
            return made
    if found is None or len(found[0]) != 2 * _BYTES:
        raise InvalidInputError("is no secret of a round", where=central.store.url, key=key)
    return found[0].decode("ascii", errors="replace")
