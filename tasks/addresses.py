"""The blocks that deliver alerts, made from the addresses that the environment of `plumbline deploy` holds."""

from __future__ import annotations

from collections.abc import Mapping

from prefect.blocks.abstract import NotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound
from pydantic import SecretStr

from plumbline.digest import digest_bytes
from plumbline.schema.suite import Suite
from tasks.blocks import block_of

__all__ = ["Blocks", "kept_fingerprint"]


class Blocks:
    """The blocks that the environment has an address for; none of it is shown, but by a fingerprint."""

    def __init__(self, suite: Suite, environment: Mapping[str, str]) -> None:
        self._blocks = {
            alert.block: block_of(alert.block, environment[alert.address_from].strip(), alert.address_from)
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
