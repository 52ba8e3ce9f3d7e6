"""A notification block for everything that Apprise speaks: mail, chats, pagers and plain webhooks."""

from __future__ import annotations

from prefect.blocks.notifications import AppriseNotificationBlock

__all__ = ["AppriseUrl"]


class AppriseUrl(AppriseNotificationBlock):
    """One Apprise URL: `mailto://`, `msteams://`, `pagerduty://`, `json://` and a hundred more; kept as a secret."""

    _block_type_name = "Apprise URL"
    _block_type_slug = "apprise-url"
