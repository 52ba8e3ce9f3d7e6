"""Diagnosis of a store's refusal: credentials, permissions or clock, with a hint. Pure."""

from __future__ import annotations

from plumbline.errors import AccessError, Refusal
from plumbline.schema.store_url import kind_at

__all__ = ["explain_refusal"]


def explain_refusal(error: AccessError, url: str, needs: str) -> tuple[str, str]:
    """Return the problem and a hint; `needs` is the required permission."""
    kind = kind_at(url)
    if error.refusal is Refusal.CLOCK:
        return f"skewed clock: {error.what}", "start a time service here (chrony, systemd-timesyncd)"
    if error.refusal is Refusal.CREDENTIALS:
        hint = f"set credentials for {url} in this environment: {kind.credentials}{kind.also}"
        return f"wrong credentials: {error.what}", hint
    if error.refusal is Refusal.PERMISSIONS:
        example = f" ({kind.grants} has the policies)" if kind.grants else ""
        return f"wrong permissions: {error.what}", f"allow this environment's identity to {needs} {url}{example}"
    return error.what, error.hint or "check the credentials and permissions of this environment"
