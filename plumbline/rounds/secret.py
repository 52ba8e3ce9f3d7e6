"""Secret of a round in the central store, shared by all its controllers.

It is outside of `rounds/`, which `report_url` may publish.
"""

from __future__ import annotations

import secrets

from plumbline.central import CentralStore, secret_key
from plumbline.errors import InvalidInputError
from plumbline.stores import PreconditionFailedError

_BYTES = 32


def round_secret(central: CentralStore, suite: str, round_id: str) -> str:
    """Return the secret of a suite's round; create it at random on first use."""
    key = secret_key(suite, round_id)
    pointer = central.read_pointer(key)
    if pointer is None:
        made = secrets.token_hex(_BYTES)
        try:
            central.swap_pointer(key, made.encode(), None)
        except PreconditionFailedError:
            pointer = central.read_pointer(key)
        else:
            return made
    if pointer is None or len(pointer[0]) != 2 * _BYTES:
        raise InvalidInputError("is not a secret of a round", where=central.store.url, key=key)
    return pointer[0].decode("ascii", errors="replace")
