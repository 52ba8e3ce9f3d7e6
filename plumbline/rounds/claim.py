"""Claim and secret of a round: all starts of its controller share the secret, and the last one alone may publish.

A controller that was taken for dead, such as a suspended machine, may wake up beside the start that continues its
round. Each start claims the round in the central store, and a start whose claim was replaced publishes nothing.
"""

from __future__ import annotations

import secrets

from pydantic import Field

from plumbline.central import CentralStore, round_key, secret_key
from plumbline.digest import canonical_json
from plumbline.errors import InvalidInputError, SupersededError
from plumbline.schema.base import Model, read_model

_CLAIM_NAME = "controller"

_SECRET_BYTES = 32


class Controller(Model):
    """One start of a flow run that controls a round or an upgrade."""

    flow_run: str
    start: int = Field(ge=0)
    """Prefect's number of the start: 2 after the first crash."""


def claim_round(central: CentralStore, suite: str, round_id: str, controller: Controller) -> None:
    """Claim the round for this start; raise `SupersededError` if a later start of the same run has claimed it."""

    def claim(data: bytes | None) -> bytes:
        holder = _parsed(central, key, data)
        if holder is not None and holder.flow_run == controller.flow_run and holder.start > controller.start:
            raise _superseded(round_id)
        return canonical_json(controller.to_json())

    key = round_key(suite, round_id, _CLAIM_NAME)
    central.change_document(key, claim)


def check_claim(central: CentralStore, suite: str, round_id: str, controller: Controller) -> None:
    """Raise `SupersededError` if a later start, or a different run, has claimed the round.

    The claim of an earlier start of the same run supersedes nobody: a start may end before its own claim.
    """
    key = round_key(suite, round_id, _CLAIM_NAME)
    holder = _parsed(central, key, central.read_document(key))
    if holder is not None and (holder.flow_run != controller.flow_run or holder.start > controller.start):
        raise _superseded(round_id)


def _superseded(round_id: str) -> SupersededError:
    return SupersededError("a later start of its controller continues this round", where=round_id)


def _parsed(central: CentralStore, key: str, data: bytes | None) -> Controller | None:
    return read_model(Controller, data, where=f"{central.store.url}/{key}") if data is not None else None


def round_secret(central: CentralStore, suite: str, round_id: str) -> str:
    """Return the secret of a suite's round; create it at random on first use.

    It is outside of `rounds/`, which `report_url` may publish.
    """
    key = secret_key(suite, round_id)
    if (kept := central.read_document(key)) is None:
        central.change_document(key, lambda now: secrets.token_hex(_SECRET_BYTES).encode() if now is None else None)
        kept = central.read_document(key)
    if kept is None or len(kept) != 2 * _SECRET_BYTES:
        raise InvalidInputError("is not a secret of a round", where=central.store.url, key=key)
    return kept.decode("ascii", errors="replace")
