"""Alerts through Prefect notification blocks.

Prefect loads this module wherever Plumbline is installed (entry point `prefect.collections`), so that the server's
automations know the block type too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import cast
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import httpx
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.core import Block
from prefect.blocks.notifications import (
    AppriseNotificationBlock,
    DiscordWebhook,
    MattermostWebhook,
    MicrosoftTeamsWebhook,
    PagerDutyWebHook,
    SendgridEmail,
    SlackWebhook,
)
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from pydantic import SecretStr

from plumbline.digest import digest_bytes
from plumbline.errors import ConfigurationError
from plumbline.escape import Channel, escape, printable
from plumbline.schema.alert_event import EVENTS, AlertEvent, Level
from plumbline.schema.suite import Suite
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS
from plumbline.variables import variable

_PAGER = "pager-duty-webhook"
_PAGER_HOSTS = {"us": "events.pagerduty.com", "eu": "events.eu.pagerduty.com"}
_PAGER_SEVERITIES: dict[Level, str] = {"failure": "error", "warning": "warning"}
_PAGER_SECONDS = 20.0
_PAGER_SUMMARY_CHARACTERS = 1024
_CHANNELS: dict[str, Channel] = {
    "mailto": "html",
    "mailtos": "html",
    "matrix": "html",
    "matrixs": "html",
    "tgram": "html",
    "slack": "slack",
    "discord": "markdown",
    "mmost": "markdown",
    "mmosts": "markdown",
    "msteams": "markdown",
    "workflow": "markdown",
    "workflows": "markdown",
}
"""Text format by the scheme of an Apprise URL; other schemes show plain text."""


class AppriseUrl(AppriseNotificationBlock):
    """Apprise URL (`mailto://`, `discord://`, `json://`, ...), stored as a secret."""

    _block_type_name = "Apprise URL"
    _block_type_slug = "apprise-url"


_KINDS: dict[str, type[SlackWebhook | MicrosoftTeamsWebhook | AppriseUrl]] = {
    "apprise-url": AppriseUrl,
    "ms-teams-webhook": MicrosoftTeamsWebhook,
    "slack-webhook": SlackWebhook,
}


class Blocks:
    """Blocks with addresses in the environment; addresses are never shown."""

    def __init__(self, suite: Suite, environment: Mapping[str, str]) -> None:
        self._blocks: dict[str, NotificationBlock] = {}
        errors: dict[str, ConfigurationError] = {}
        for alert in suite.alerts:
            if address := variable(alert.address_from, environment=environment):
                try:
                    self._blocks[alert.block] = _create_block(alert.block, address, alert.address_from)
                except ConfigurationError as error:
                    errors[str(error)] = error
        self.errors = tuple(errors.values())
        """Malformed addresses. Such a block can still be on the server."""

    @property
    def fingerprints(self) -> dict[str, str]:
        """Return a short SHA-256 of each block's address, to detect a change."""
        return {name: _fingerprint(_address(block.model_dump())) for name, block in self._blocks.items()}

    def get(self, block: str) -> NotificationBlock | None:
        """Return the local block, for an unreachable server; `None` without address."""
        return self._blocks.get(block)

    def save(self, block: str) -> None:
        """Create `TYPE/NAME` on the server, or update its address."""
        _ = self._blocks[block].save(block.partition("/")[2], overwrite=True)


def stored_fingerprint(client: SyncPrefectClient, block: str) -> str | None:
    """Return the fingerprint of a block on the server; `None` if absent."""
    kind, _, name = block.partition("/")
    try:
        stored = client.read_block_document_by_name(name, kind, include_secrets=True)
    except ObjectNotFound:
        return None
    return _fingerprint(_address(stored.data))


def block_id(client: SyncPrefectClient, block: str) -> UUID:
    """Return the id of `TYPE/NAME`; raise `ObjectNotFound` if absent."""
    kind, _, name = block.partition("/")
    return client.read_block_document_by_name(name, kind).id


def _address(data: Mapping[str, object]) -> str:
    parts = [data.get(key) for key in ("url", "integration_key", "api_key", "region_name")]
    return "\n".join(part.get_secret_value() if isinstance(part, SecretStr) else str(part) for part in parts)


def _fingerprint(address: str) -> str:
    return f"sha256:{digest_bytes(address.encode())[:12]}"


@contextmanager
def _quiet_apprise() -> Iterator[None]:
    """Silence Apprise's log, which shows malformed addresses."""
    logger = logging.getLogger("apprise")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _create_block(block: str, address: str, variable: str) -> NotificationBlock:
    """Return the block `TYPE/NAME` for an address; raise if it does not fit."""
    kind, where = block.partition("/")[0], f"the address in {variable}"
    if kind == _PAGER:
        return _pager(block, address, where)
    if kind not in _KINDS:
        hint = f"create the block in Prefect yourself, or use {', '.join((*_KINDS, _PAGER))}"
        raise ConfigurationError(f"cannot become a block of the type {kind}", where=where, key=block, hint=hint)
    from apprise import Apprise

    with suppress(ValueError), _quiet_apprise():
        if Apprise().add(address):
            return _KINDS[kind](url=SecretStr(address))
    raise ConfigurationError(
        f"is not an address of the type {kind}", where=where, key=block, hint="docs/how-to/alerts.md shows some"
    )


def _pager(block: str, address: str, where: str) -> PagerDutyWebHook:
    # Not by `hostname`, which is lower-cased.
    parts = urlsplit(address)
    integration, _, api = parts.netloc.partition("@")
    region = parse_qs(parts.query).get("region", ["us"])[0]
    if parts.scheme != "pagerduty" or not (integration and api) or region not in ("us", "eu"):
        # Not as an address with a login: errors show none.
        hint = "pagerduty://, the integration key, @, the API key; for the European service also /?region=eu"
        raise ConfigurationError("is not an address of PagerDuty", where=where, key=block, hint=hint)
    return PagerDutyWebHook(integration_key=SecretStr(integration), api_key=SecretStr(api), region_name=region)


def send(
    block: str, subject: str, body: str, known: Blocks, *, event: AlertEvent | None = None, about: str = ""
) -> str:
    """Send one message through a Prefect block; return the reason of a failure, or "".

    Without an `event` the message is a test. `about` is the incident key for services that group messages.
    """
    try:
        loaded = _load(block, known)
        if not isinstance(loaded, NotificationBlock):
            return f"{block} sends no notifications"
        if isinstance(loaded, PagerDutyWebHook):
            _page(loaded, printable(subject), printable(body), event=event, about=about or "test")
            return ""
        channel = _channel(loaded)
        # A subject is one line, and no channel shows it as HTML.
        subject, body = escape(subject, "plain" if channel == "html" else channel), escape(body, channel)
        if isinstance(loaded, AppriseNotificationBlock):
            loaded.notify_type = _level(event)
        if isinstance(loaded, MicrosoftTeamsWebhook):
            # A card is Markdown, which joins lines without an empty line between them.
            body = body.replace("\n", "\n\n")
        with loaded.raise_on_failure():
            _ = loaded.notify(body, subject)
    except (NotificationError, ValueError, *PREFECT_ERRORS) as error:
        # An address may contain a token: remove it from the log.
        return re.sub(r"\S+://\S+", "(address)", str(error)).strip() or type(error).__name__
    except Exception as error:  # noqa: BLE001 - third-party code: its error fails this message only
        return f"{block} cannot be used: {type(error).__name__}"
    return ""


def _level(event: AlertEvent | None) -> Level:
    return EVENTS[event].level if event else "info"


def _channel(block: NotificationBlock) -> Channel:
    """Return the text format of the receivers of `block`."""
    if isinstance(block, SendgridEmail):
        return "html"
    if isinstance(block, SlackWebhook):
        return "slack"
    if isinstance(block, (MattermostWebhook, DiscordWebhook, MicrosoftTeamsWebhook)):
        return "markdown"
    scheme = block.url.get_secret_value().partition("://")[0] if isinstance(block, AppriseUrl) else ""
    return _CHANNELS.get(scheme.lower(), "plain")


def _load(block: str, known: Blocks) -> Block:
    """Return the server's block, or the local one if unreachable."""
    ours = known.get(block)
    if ours is not None and PREFECT_API_URL.value() is None:
        # Prefect would start a temporary server without blocks.
        return ours
    try:
        with _quiet_apprise():
            return cast("Block", Block.load(block))
    except PREFECT_ERRORS:
        if ours is None:
            raise
        return ours


def _page(block: PagerDutyWebHook, subject: str, body: str, *, event: AlertEvent | None, about: str) -> None:
    """Open or resolve an incident by PagerDuty's Events API; raise `HTTPError` on failure.

    Prefect's block and Apprise only open incidents: a recovery would page again.
    """
    content = {
        "routing_key": block.integration_key.get_secret_value(),
        "event_action": "resolve" if event == "recovered" else "trigger",
        "dedup_key": about[:255],
        "client": "Plumbline",
        "payload": {
            "summary": subject[:_PAGER_SUMMARY_CHARACTERS],
            "severity": _PAGER_SEVERITIES.get(_level(event), "info"),
            "source": "plumbline",
            "component": about,
            "custom_details": {"alert": body},
        },
    }
    answer = httpx.post(f"https://{_PAGER_HOSTS[block.region_name]}/v2/enqueue", json=content, timeout=_PAGER_SECONDS)
    answer.raise_for_status()
