"""One message through one Prefect block."""

from __future__ import annotations

import re
from typing import Literal, cast

from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.core import Block
from prefect.blocks.notifications import AbstractAppriseNotificationBlock, MicrosoftTeamsWebhook, PagerDutyWebHook
from prefect.settings import PREFECT_API_URL

from plumbline.schema.suite import AlertEvent
from tasks.addresses import Blocks
from tasks.blocks import quiet_apprise
from tasks.observing import PREFECT_ERRORS
from tasks.paging import page

__all__ = ["send"]

Colour = Literal["info", "success", "warning", "failure"]

_COLOURS: dict[AlertEvent | None, Colour] = {
    "drift": "failure",
    "invalid": "failure",
    "missed": "warning",
    "recovered": "success",
    None: "info",
}


def send(
    block: str, subject: str, body: str, known: Blocks, *, event: AlertEvent | None = None, about: str = ""
) -> str:
    """Send one message through a Prefect block, as a test where there is no event; why it failed, or nothing."""
    try:
        loaded = _load(block, known)
        if not isinstance(loaded, NotificationBlock):
            return f"{block} sends no notifications"
        if isinstance(loaded, PagerDutyWebHook):
            page(loaded, subject, body, event=event, about=about or "test")
            return ""
        if isinstance(loaded, AbstractAppriseNotificationBlock):
            loaded.notify_type = _COLOURS[event]
        if isinstance(loaded, MicrosoftTeamsWebhook):
            # A card is Markdown: it joins lines that no empty one separates.
            body = body.replace("\n", "\n\n")
        with loaded.raise_on_failure():
            _ = loaded.notify(body, subject)
    except (NotificationError, ValueError, *PREFECT_ERRORS) as error:
        # An address may hold a token: none of it goes into a log.
        return re.sub(r"\S+://\S+", "(address)", str(error)).strip() or type(error).__name__
    except Exception as error:  # noqa: BLE001 - a block is anybody's code: what it raises is one message's failure
        return f"{block} cannot be used: {type(error).__name__}"
    return ""


def _load(block: str, known: Blocks) -> Block:
    """The block that the server keeps; while it does not answer, or where there is none, the environment's."""
    ours = known.get(block)
    if ours is not None and PREFECT_API_URL.value() is None:
        # Prefect would start a server of its own, and find no block in it.
        return ours
    try:
        with quiet_apprise():
            return cast("Block", Block.load(block))
    except PREFECT_ERRORS:
        if ours is None:
            raise
        return ours
