"""URL of a store: scheme, bucket (or account and container), prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["StoreAddress", "parse_store_url"]

_HINT = "file://FOLDER, s3://BUCKET/PREFIX, az://ACCOUNT/CONTAINER/PREFIX or gs://BUCKET/PREFIX"
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"\$root|\$web|[a-z0-9](?:-?[a-z0-9]){2,62}")
_CREDENTIAL = re.compile(r"(?i)(sig|key|token|secret)=")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Parts of a store URL; `container` is set for `az://` only, with the account in `bucket`."""

    scheme: str
    bucket: str
    container: str
    prefix: str


def parse_store_url(url: str) -> StoreAddress:
    """Return the parts of `url`.

    Bucket, account and container are names by the rules of their service: a host, a port, a credential, a query or a
    fragment can never become part of an address to which credentials are sent.

    Raises:
        ValueError: with the reason, if `url` is not the URL of a store.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise ValueError(f"{url!r} is not a store URL: {_HINT}")
    if scheme not in ("file", "s3", "az", "gs"):
        raise ValueError(f"unknown kind of store {scheme!r}: {_HINT}")
    if "@" in rest or "?" in rest or _CREDENTIAL.search(rest):
        raise ValueError("contains a credential or a query; each SDK finds its own (environment, profile, identity)")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", rest):
        raise ValueError(f"{url!r} contains a control character")
    if not rest.strip("/"):
        raise ValueError(f"{url!r} names no bucket, container or folder")
    if scheme == "file":
        return StoreAddress(scheme, "", "", rest)
    return _object_store(url, scheme, rest)


def _object_store(url: str, scheme: str, rest: str) -> StoreAddress:
    if "#" in rest:
        raise ValueError(f"{url!r} has a fragment: remove '#' and what follows")
    bucket, _, prefix = rest.partition("/")
    container = ""
    if scheme == "az":
        container, _, prefix = prefix.partition("/")
        if not _ACCOUNT.fullmatch(bucket):
            raise ValueError(
                f"{bucket!r} is not a storage account's name: 3 to 24 lower-case letters and digits, no host or port "
                "(az://ACCOUNT/CONTAINER/PREFIX)"
            )
        if not container:
            raise ValueError(f"{url!r} names no container: az://ACCOUNT/CONTAINER/PREFIX")
        if not _CONTAINER.fullmatch(container):
            raise ValueError(f"{container!r} is not a container's name: 3 to 63 lower-case letters, digits and hyphens")
    elif not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{bucket!r} is not a bucket's name: letters, digits, '.', '_' and '-', no host or port")
    return StoreAddress(scheme, bucket, container, prefix.strip("/"))
