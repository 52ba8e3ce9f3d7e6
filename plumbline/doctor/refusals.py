"""Diagnosis of a store's refusal: credentials, permissions or clock, with a hint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from plumbline.errors import AccessError, Refusal

__all__ = ["explain_refusal"]

_SOURCES: Mapping[str, str] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role",
    "az": "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or the machine's identity",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, gcloud's login, or the machine's service account",
    "file": "the user of this process",
}
# Other reasons for the same error code.
_ALSO: Mapping[str, str] = {
    "az": "; a clock that is off by 15 minutes, or a firewall of the account, gives the same error"
}
_GRANTS: Mapping[str, str] = {"s3": "infra/aws", "az": "infra/azure", "gs": "infra/gcp"}


def explain_refusal(error: AccessError, url: str, needs: str) -> tuple[str, str]:
    """Return the problem and a hint; `needs` is the required permission."""
    scheme = urlsplit(url).scheme
    if error.refusal is Refusal.CLOCK:
        return f"skewed clock: {error.what}", "start a time service here (chrony, systemd-timesyncd)"
    if error.refusal is Refusal.CREDENTIALS:
        hint = f"set credentials for {url} in this environment: {_SOURCES[scheme]}{_ALSO.get(scheme, '')}"
        return f"wrong credentials: {error.what}", hint
    if error.refusal is Refusal.PERMISSIONS:
        example = f" ({_GRANTS[scheme]} has the policies)" if scheme in _GRANTS else ""
        return f"wrong permissions: {error.what}", f"allow this environment's identity to {needs} {url}{example}"
    return error.what, error.hint or "check the credentials and permissions of this environment"
