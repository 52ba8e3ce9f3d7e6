"""Store URLs and keys, and the kinds of stores. Pure.

A new kind is one module in `plumbline/data/stores/` with `open_url`, and one entry in `KINDS`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Right = Literal["read", "list", "create", "replace", "delete"]
PRIVATE = "secrets/"
"""Keys that nothing publishes; a folder opens them for its user alone."""
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_CONTAINER = re.compile(r"\$root|\$web|[a-z0-9](?:-?[a-z0-9]){2,62}")
_CREDENTIAL = re.compile(r"(?i)(sig|key|token|secret)=")
_MAX_NAME_BYTES = 255
"""Maximum length of a file's name on common file systems."""


def safe_key(key: str) -> str:
    """Return `key` if it is a safe relative path; raise `ValueError` otherwise."""
    bad = (
        not key
        or len(key) > 512
        or any(len(name.encode()) > _MAX_NAME_BYTES for name in key.split("/"))
        or key.startswith("/")
        or "\\" in key
        or ":" in key
        or any(ord(char) < 32 or ord(char) == 127 for char in key)
        or posixpath.normpath(key) != key
        or key.split("/", 1)[0] == ".."
        or key == "."
    )
    if bad:
        raise ValueError(f"{key[:80]!r} is not a plain relative path")
    return key


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Parts of a store URL. `container` is set for `az://` only, with the account in `bucket`."""

    scheme: str
    bucket: str
    container: str
    prefix: str


@dataclass(frozen=True, slots=True)
class StoreKind:
    """Kind of object store: URL scheme, module, and doctor's hints."""

    form: str
    """Its URL, such as `s3://BUCKET/PREFIX`."""
    module: str
    """Module with `open_url(url, address, timeouts)`, imported for the first such store."""
    address: Callable[[str, str], StoreAddress]
    """Returns the address of (URL, text after `://`); raises `ValueError` with the reason."""
    credentials: str
    """Places where credentials are found."""
    rights: Mapping[Right, str]
    """The service's name of each permission."""
    grants: str = ""
    """Folder with the policies that grant the permissions."""
    also: str = ""
    """Other reasons for the error code of wrong credentials."""


def kind_at(url: str) -> StoreKind:
    """Return the store kind at `url`; raise `ValueError` for unknown schemes."""
    scheme, separator, _ = url.partition("://")
    *forms, last = (kind.form for kind in KINDS.values())
    hint = f"{', '.join(forms)} or {last}"
    if not separator:
        raise ValueError(f"{url!r} is not a store URL: {hint}")
    if scheme not in KINDS:
        raise ValueError(f"unknown kind of store {scheme!r}: {hint}")
    return KINDS[scheme]


def parse_store_url(url: str) -> StoreAddress:
    """Parse a store `url` to its parts.

    Bucket, account and container are names by the rules of their service: a host, a port, a credential, a query or a
    fragment can never become part of an address to which credentials are sent.

    Raises:
        ValueError: with the reason, if `url` is not the URL of a store.
    """
    kind, rest = kind_at(url), url.partition("://")[2]
    if "@" in rest or "?" in rest or _CREDENTIAL.search(rest):
        raise ValueError("contains a credential or a query; each SDK finds its own (environment, profile, identity)")
    if re.search(r"[\x00-\x1f\x7f-\x9f]", rest):
        raise ValueError(f"{url!r} contains a control character")
    if not rest.strip("/"):
        raise ValueError(f"{url!r} names no bucket, container or folder")
    return kind.address(url, rest)


def relation(url: str, other: str) -> str:
    """Describe how a store URL contains or equals `other`, or return ""."""
    here, there = (_place(parse_store_url(each)) for each in (url, other))
    if here == there:
        return "is the same place as"
    shared = min(len(here), len(there))
    return "" if here[:shared] != there[:shared] else "contains" if len(here) == shared else "is inside"


def _place(address: StoreAddress) -> tuple[str, ...]:
    """Return a store location as normalised path components."""
    prefix = posixpath.normpath(address.prefix or ".") if address.scheme == "file" else address.prefix
    names = () if prefix in ("", ".") else tuple(prefix.split("/"))
    return address.scheme, address.bucket, address.container, *names


def _folder(url: str, rest: str) -> StoreAddress:
    return StoreAddress(url.partition("://")[0], "", "", rest)


def _bucket(url: str, rest: str) -> StoreAddress:
    _refuse_fragment(url, rest)
    bucket, _, prefix = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{bucket!r} is not a bucket's name: letters, digits, '.', '_' and '-', no host or port")
    return StoreAddress(url.partition("://")[0], bucket, "", prefix.strip("/"))


def _container(url: str, rest: str) -> StoreAddress:
    _refuse_fragment(url, rest)
    account, _, path = rest.partition("/")
    container, _, prefix = path.partition("/")
    if not _ACCOUNT.fullmatch(account):
        raise ValueError(
            f"{account!r} is not a storage account's name: 3 to 24 lower-case letters and digits, no host or port "
            "(az://ACCOUNT/CONTAINER/PREFIX)"
        )
    if not container:
        raise ValueError(f"{url!r} names no container: az://ACCOUNT/CONTAINER/PREFIX")
    if not _CONTAINER.fullmatch(container):
        raise ValueError(f"{container!r} is not a container's name: 3 to 63 lower-case letters, digits and hyphens")
    return StoreAddress("az", account, container, prefix.strip("/"))


def _refuse_fragment(url: str, rest: str) -> None:
    if "#" in rest:
        raise ValueError(f"{url!r} has a fragment: remove '#' and what follows")


_FOLDER_RIGHTS: Mapping[Right, str] = {
    "read": "to read the folder", "list": "to read the folder", "create": "to write in the folder",
    "replace": "to write in the folder", "delete": "to write in the folder",
}  # fmt: skip
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
KINDS: Mapping[str, StoreKind] = {
    "file": StoreKind(
        "file://FOLDER", "plumbline.data.stores.file", _folder, "the user of this process", _FOLDER_RIGHTS
    ),
    "s3": StoreKind(
        form="s3://BUCKET/PREFIX",
        address=_bucket,
        module="plumbline.data.stores.s3",
        credentials="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the machine's role",
        grants="infra/aws",
        rights={
            "read": "s3:GetObject",
            "list": "s3:ListBucket",
            "create": "s3:PutObject",
            "replace": "s3:PutObject",
            "delete": "s3:DeleteObject",
        },
    ),
    "az": StoreKind(
        form="az://ACCOUNT/CONTAINER/PREFIX",
        address=_container,
        module="plumbline.data.stores.azure",
        credentials=(
            "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or the machine's identity"
        ),
        grants="infra/azure",
        also="; a clock that is off by 15 minutes, or a firewall of the account, gives the same error",
        rights={
            "read": f"{_BLOBS}/read",
            "list": f"{_BLOBS}/read",
            "create": f"{_BLOBS}/add/action (or write)",
            "replace": f"{_BLOBS}/write",
            "delete": f"{_BLOBS}/delete",
        },
    ),
    "gs": StoreKind(
        form="gs://BUCKET/PREFIX",
        address=_bucket,
        module="plumbline.data.stores.gs",
        credentials="GOOGLE_APPLICATION_CREDENTIALS, gcloud's login, or the machine's service account",
        grants="infra/gcp",
        rights={
            "read": "storage.objects.get",
            "list": "storage.objects.list",
            "create": "storage.objects.create",
            "replace": "storage.objects.create and storage.objects.delete",
            "delete": "storage.objects.delete",
        },
    ),
}
"""Kind of each scheme."""
