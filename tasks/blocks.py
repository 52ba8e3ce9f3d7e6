"""A notification block for everything that Apprise speaks.

Prefect loads this module wherever Plumbline is installed (an entry point says so), the server's automations with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.blocks.notifications import AppriseNotificationBlock

__all__ = ["AppriseUrl", "quiet_apprise"]


class AppriseUrl(AppriseNotificationBlock):
    """One Apprise URL: `mailto://`, `discord://`, `json://` and a hundred more; kept as a secret."""

    _block_type_name = "Apprise URL"
    _block_type_slug = "apprise-url"


@contextmanager
def quiet_apprise() -> Iterator[None]:
    """While an address is taken up: one that it does not understand, Apprise would write into the log as it stands."""
    logger = logging.getLogger("apprise")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
