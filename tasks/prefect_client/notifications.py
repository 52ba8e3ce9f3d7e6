"""Alerts through Prefect notification blocks.

Prefect loads this module wherever Plumbline is installed (entry point `prefect.collections`), so that the server's
automations know the block type too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

import httpx
from prefect.blocks.abstract import NotificationBlock, NotificationError
from prefect.blocks.core import Block
from prefect.blocks.notifications import (
    AbstractAppriseNotificationBlock,
    AppriseNotificationBlock,
    DiscordWebhook,
    MattermostWebhook,
    MicrosoftTeamsWebhook,
    OpsgenieWebhook,
    PagerDutyWebHook,
    SendgridEmail,
    SlackWebhook,
    TwilioSMS,
)
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL
from pydantic import SecretStr

from plumbline.schema.alert_event import EVENTS, AlertEvent, Level
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.escape import Channel, clean, escape, printable, shorten
from plumbline.schema.suite import Suite
from plumbline.schema.variables import variable
from plumbline.tasks.prefect_client.api import PREFECT_ERRORS

if TYPE_CHECKING:
    from apprise import NotifyBase

_PAGER = "pager-duty-webhook"
_PAGER_HOSTS = {"us": "events.pagerduty.com", "eu": "events.eu.pagerduty.com"}
_PAGER_SEVERITIES: dict[Level, str] = {"failure": "error", "warning": "warning"}
_PAGER_SECONDS = 20.0
_PAGER_SUMMARY_CHARACTERS = 1024
_MACHINES = frozenset({"form", "json", "xml"})
"""Apprise's services whose receiver is a program, which shows the text to nobody."""
_TITLE_CHARACTERS = 24
"""Maximum characters that Apprise adds where it puts a title into the body."""


class AppriseUrl(AppriseNotificationBlock):
    """Apprise URL (`mailto://`, `discord://`, `json://`, ...), stored as a secret."""

    _block_type_name = "Apprise URL"
    _block_type_slug = "apprise-url"


_KINDS: dict[str, type[SlackWebhook | MicrosoftTeamsWebhook | AppriseUrl]] = {
    "apprise-url": AppriseUrl,
    "ms-teams-webhook": MicrosoftTeamsWebhook,
    "slack-webhook": SlackWebhook,
}
_EXAMPLES: dict[type[Block], str] = {
    DiscordWebhook: "discord://1/x",
    MattermostWebhook: "mmost://host/x",
    MicrosoftTeamsWebhook: "workflows://host/x/x",
    OpsgenieWebhook: "opsgenie://x",
    SendgridEmail: "sendgrid://x:from@example.com",
    SlackWebhook: f"slack://T{'1' * 8}/B{'1' * 8}/{'x' * 24}",
    TwilioSMS: f"twilio://AC{'0' * 32}:{'0' * 32}@15550000000",
}
"""An address of the service of Prefect's own blocks, whose format and limits are those of all its addresses."""


class Blocks:
    """Notification blocks of the suite, with secret addresses from the environment."""

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
        """Return a short SHA-256 of each block's address, to detect changes."""
        return {name: _fingerprint(_address(block.model_dump())) for name, block in self._blocks.items()}

    def get(self, block: str) -> NotificationBlock | None:
        """Return the block built locally, for an unreachable server; `None` without address."""
        return self._blocks.get(block)

    def save(self, block: str) -> None:
        """Create the block `TYPE/NAME` on the server, or update its address."""
        _ = self._blocks[block].save(block.partition("/")[2], overwrite=True)


def stored_fingerprint(client: SyncPrefectClient, block: str) -> str | None:
    """Return the address fingerprint of a server's block; `None` if absent."""
    kind, _, name = block.partition("/")
    try:
        stored = client.read_block_document_by_name(name, kind, include_secrets=True)
    except ObjectNotFound:
        return None
    return _fingerprint(_address(stored.data))


def block_id(client: SyncPrefectClient, block: str) -> UUID:
    """Return the id of block `TYPE/NAME`; raise `ObjectNotFound` if absent."""
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
    """Build the block `TYPE/NAME` for an address; raise if unfit."""
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
    """Send one message through a Prefect block; return the failure, or "".

    Without an `event` the message is a test. `about` is the incident key for services that group messages.
    """
    try:
        loaded = _load(block, known)
        if not isinstance(loaded, NotificationBlock):
            return f"{block} sends no notifications"
        if isinstance(loaded, PagerDutyWebHook):
            _page(loaded, printable(subject), printable(body), event=event, about=about or "test")
            return ""
        if isinstance(loaded, AbstractAppriseNotificationBlock):
            loaded.notify_type = _level(event)
        title, text = _fitted(subject, body, _services(loaded))
        with loaded.raise_on_failure():
            _ = loaded.notify(text, title)
    except ConfigurationError as error:
        return f"{error.what} (hint: {error.hint})"
    except (NotificationError, ValueError, *PREFECT_ERRORS) as error:
        # An address may contain a token: remove it from the log.
        return re.sub(r"\S+://\S+", "(address)", str(error)).strip() or type(error).__name__
    except Exception as error:  # noqa: BLE001 - third-party code: its error fails this message only
        return f"{block} cannot be used: {type(error).__name__}"
    return ""


def _level(event: AlertEvent | None) -> Level:
    return EVENTS[event].level if event else "info"


def _services(block: NotificationBlock) -> list[NotifyBase]:
    """Return the Apprise services behind a block's address, or a generic one."""
    from apprise import Apprise, NotifyBase

    examples = [address for kind, address in _EXAMPLES.items() if isinstance(block, kind)]
    own = [block.url.get_secret_value()] if isinstance(block, AppriseNotificationBlock) else []
    with _quiet_apprise():
        for address in (*own, *examples):
            found = Apprise()
            if found.add(address):
                return list(found)
    return [NotifyBase()]  # type: ignore[no-untyped-call]


def _fitted(subject: str, body: str, services: list[NotifyBase]) -> tuple[str, str]:
    """Return subject and body, escaped and shortened for these services."""
    channels = {_channel(service) for service in services}
    # Several services get one text: that of chats is harmless to each.
    channel: Channel = channels.pop() if len(channels) == 1 else "chat"
    is_card = any("workflows" in _schemas(service) for service in services)

    def shown(text: str) -> str:
        # Teams' cards join lines without an empty line between them.
        return escape(text, channel).replace("\n", "\n\n" if is_card else "\n")

    limit = min(service.body_maxlen for service in services)
    title = clean(subject, min(limit // 3, *(service.title_maxlen or limit for service in services)))
    # No service shows a title of its own as HTML.
    is_in_body = any(not service.title_maxlen for service in services)
    title = escape(title, "chat" if channel == "html" and not is_in_body else channel)
    room = limit - len(title) - _TITLE_CHARACTERS
    # Apprise sends several messages to an address with `?overflow=split`.
    is_split = all(service.overflow_mode == "split" for service in services)
    return title, shown(body if is_split else shorten(body, lambda text: len(shown(text)) <= room))


def _channel(service: NotifyBase) -> Channel:
    """Return the text format of a service: plain, HTML, or chat markup."""
    if _schemas(service) & _MACHINES:
        return "plain"
    return "html" if service.notify_format == "html" else "chat"


def _schemas(service: NotifyBase) -> set[str]:
    return set(service.schemas())  # type: ignore[no-untyped-call]


def _load(block: str, known: Blocks) -> Block:
    """Return the block from the server, or the local one if unreachable or deleted."""
    ours = known.get(block)
    if PREFECT_API_URL.value() is None:
        # Prefect would start a temporary server without blocks.
        if ours is None:
            hint = "set the variable of its address_from, or PREFECT_API_URL to the server that has it"
            raise ConfigurationError("has no known address", where=block, hint=hint)
        return ours
    try:
        with _quiet_apprise():
            return cast("Block", Block.load(block))
    except (ValueError, *PREFECT_ERRORS):  # `ValueError`: the block was deleted
        if ours is None:
            raise
        return ours


def _page(block: PagerDutyWebHook, subject: str, body: str, *, event: AlertEvent | None, about: str) -> None:
    """Open or resolve a PagerDuty incident; raise `HTTPError` on failure.

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
