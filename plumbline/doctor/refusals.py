"""What a store means when it refuses: who asks, what they ask for, or when; and the mend of each. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from plumbline.errors import AccessError

__all__ = ["tell_refusal"]

# The services' own words, without which a refusal by 403 could be any of the three.
_UNKNOWN = {
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "ExpiredTokenException", "InvalidToken",
    "TokenRefreshRequired", "AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation",
    "AuthorizationFailure", "AuthorizationHeaderMalformed", "KeyBasedAuthenticationNotPermitted", "authError",
    "credentials", "401",
}  # fmt: skip
_FORBIDDEN = {
    "AccessDenied", "AllAccessDisabled", "AuthorizationPermissionMismatch",
    "InsufficientAccountPermissions", "AuthorizationResourceTypeMismatch", "AuthorizationServiceMismatch",
    "forbidden", "insufficientPermissions", "Permission", "403",
}  # fmt: skip
_SKEWED = {"RequestTimeTooSkewed"}
_SOURCES: Mapping[str, str] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role",
    "az": "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or the machine's identity",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, gcloud's login, or the machine's service account",
    "file": "the user that this runs as",
}
# What else a service answers in the same words.
_ALSO: Mapping[str, str] = {"az": "; a clock that is off by 15 minutes, or a firewall of the account, looks alike"}
_GRANTS: Mapping[str, str] = {"s3": "infra/aws", "az": "infra/azure", "gs": "infra/gcp"}


def tell_refusal(error: AccessError, url: str, needs: str) -> tuple[str, str]:
    """What is wrong and how it is mended; `needs` is what the asker has to be allowed, as words."""
    scheme = urlsplit(url).scheme
    words = set(re.findall(r"\w+", error.what))
    if words & _SKEWED:
        return f"skewed clock: {error.what}", "start a time service here (chrony, systemd-timesyncd)"
    if words & _UNKNOWN:
        hint = f"give this environment credentials that open {url}: {_SOURCES[scheme]}{_ALSO.get(scheme, '')}"
        return f"wrong credentials: {error.what}", hint
    if words & _FORBIDDEN:
        example = f" ({_GRANTS[scheme]} has the policies)" if scheme in _GRANTS else ""
        return f"wrong permissions: {error.what}", f"allow this environment's identity to {needs} {url}{example}"
    return error.what, error.hint or "look at the credentials and the permissions of this environment"
