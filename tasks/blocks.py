"""Notification blocks from addresses, and one for everything that Apprise speaks.

Prefect loads this module wherever Plumbline is installed (an entry point says so), the server's automations with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import parse_qs, urlsplit

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import (
    AppriseNotificationBlock,
    MicrosoftTeamsWebhook,
    PagerDutyWebHook,
    SlackWebhook,
)
from pydantic import SecretStr

from plumbline.errors import ConfigurationError

__all__ = ["AppriseUrl", "block_of", "quiet_apprise"]


class AppriseUrl(AppriseNotificationBlock):
    """One Apprise URL: `mailto://`, `discord://`, `json://` and a hundred more; kept as a secret."""

    _block_type_name = "Apprise URL"
    _block_type_slug = "apprise-url"


_PAGER = "pager-duty-webhook"
_KINDS: dict[str, type[SlackWebhook | MicrosoftTeamsWebhook | AppriseUrl]] = {
    "apprise-url": AppriseUrl,
    "ms-teams-webhook": MicrosoftTeamsWebhook,
    "slack-webhook": SlackWebhook,
}


@contextmanager
def quiet_apprise() -> Iterator[None]:
    """While an address is taken up: one that it does not understand, Apprise would write into the log as it stands."""
    logger = logging.getLogger("apprise")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def block_of(block: str, address: str, variable: str) -> NotificationBlock:
    """The block `TYPE/NAME` for an address, which is never shown; `ConfigurationError` if it is none of that type."""
    kind, where = block.partition("/")[0], f"the address in {variable}"
    if kind == _PAGER:
        return _pager(block, address, where)
    if kind not in _KINDS:
        mend = f"make the block in Prefect yourself, or use {', '.join((*_KINDS, _PAGER))}"
        raise ConfigurationError(f"cannot become a block of the type {kind}", where=where, key=block, mend=mend)
    from apprise import Apprise

    with suppress(ValueError), quiet_apprise():
        if Apprise().add(address):
            return _KINDS[kind](url=SecretStr(address))
    raise ConfigurationError(f"is none of {kind}'s", where=where, key=block, mend="docs/OPERATIONS.md shows some")


def _pager(block: str, address: str, where: str) -> PagerDutyWebHook:
    # Not by `hostname`, which is lower-cased.
    parts = urlsplit(address)
    integration, _, api = parts.netloc.partition("@")
    region = parse_qs(parts.query).get("region", ["us"])[0]
    if parts.scheme != "pagerduty" or not (integration and api) or region not in ("us", "eu"):
        mend = "pagerduty://INTEGRATION-KEY@API-KEY, and /?region=eu for the European service"
        raise ConfigurationError("is no address of PagerDuty", where=where, key=block, mend=mend)
    return PagerDutyWebHook(integration_key=SecretStr(integration), api_key=SecretStr(api), region_name=region)
