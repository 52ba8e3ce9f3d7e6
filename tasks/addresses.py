"""The blocks that deliver alerts, made from the addresses that the environment of `plumbline deploy` holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from urllib.parse import parse_qs, urlsplit

from prefect.blocks.abstract import NotificationBlock
from prefect.blocks.notifications import MicrosoftTeamsWebhook, PagerDutyWebHook, SlackWebhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from pydantic import SecretStr

from plumbline.digest import digest_bytes
from plumbline.errors import ConfigurationError
from plumbline.schema.suite import Suite
from tasks.blocks import AppriseUrl, quiet_apprise

__all__ = ["Blocks", "kept_fingerprint"]

_PAGER = "pager-duty-webhook"
_KINDS: dict[str, type[SlackWebhook | MicrosoftTeamsWebhook | AppriseUrl]] = {
    "apprise-url": AppriseUrl,
    "ms-teams-webhook": MicrosoftTeamsWebhook,
    "slack-webhook": SlackWebhook,
}


class Blocks:
    """The blocks that the environment has an address for; none of it is shown, but by a fingerprint."""

    def __init__(self, suite: Suite, environment: Mapping[str, str]) -> None:
        self._blocks = {
            alert.block: _block_of(alert.block, environment[alert.address_from].strip(), alert.address_from)
            for alert in suite.alerts
            if alert.address_from and environment.get(alert.address_from, "").strip()
        }

    @property
    def fingerprints(self) -> dict[str, str]:
        """By block: what its address can be told from another by."""
        return {name: _fingerprint(_address(block.model_dump())) for name, block in self._blocks.items()}

    def get(self, block: str) -> NotificationBlock | None:
        """The block itself, as long as the server that keeps it is away; `None` where the environment has none."""
        return self._blocks.get(block)

    def make(self, block: str) -> None:
        """Create `TYPE/NAME`, or give it the address from the environment."""
        _ = self._blocks[block].save(block.partition("/")[2], overwrite=True)


def kept_fingerprint(client: SyncPrefectClient, block: str) -> str | None:
    """The fingerprint of a block on the server; `None` where there is no such block."""
    kind, _, name = block.partition("/")
    try:
        kept = client.read_block_document_by_name(name, kind, include_secrets=True)
    except ObjectNotFound:
        return None
    return _fingerprint(_address(kept.data))


def _address(data: Mapping[str, object]) -> str:
    parts = [data.get(key) for key in ("url", "integration_key", "api_key", "region_name")]
    return "\n".join(part.get_secret_value() if isinstance(part, SecretStr) else str(part) for part in parts)


def _fingerprint(address: str) -> str:
    return f"sha256:{digest_bytes(address.encode())[:12]}"


def _block_of(block: str, address: str, variable: str) -> NotificationBlock:
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
