"""PagerDuty, by its Events API: Prefect's block and Apprise only open incidents, so a recovery would page once more."""

from __future__ import annotations

import httpx
from prefect.blocks.notifications import PagerDutyWebHook

from plumbline.schema.suite import AlertEvent

__all__ = ["page"]

_HOSTS = {"us": "events.pagerduty.com", "eu": "events.eu.pagerduty.com"}
_SEVERITIES: dict[AlertEvent | None, str] = {"drift": "error", "invalid": "error", "missed": "warning", None: "info"}
_SECONDS = 20.0
_MOST = 1024


def page(block: PagerDutyWebHook, subject: str, body: str, *, event: AlertEvent | None, about: str) -> None:
    """Open the incident of what it is about, or resolve it; `HTTPError` where that fails."""
    content = {
        "routing_key": block.integration_key.get_secret_value(),
        "event_action": "resolve" if event == "recovered" else "trigger",
        "dedup_key": about[:255],
        "client": "Plumbline",
        "payload": {
            "summary": subject[:_MOST],
            "severity": _SEVERITIES.get(event, "info"),
            "source": "plumbline",
            "component": about,
            "custom_details": {"alert": body},
        },
    }
    answer = httpx.post(f"https://{_HOSTS[block.region_name]}/v2/enqueue", json=content, timeout=_SECONDS)
    answer.raise_for_status()
