"""Verification of a published dataset against its manifest."""

from __future__ import annotations

from dataclasses import dataclass

from plumbline.errors import InvalidInputError
from plumbline.schema.base import read_model
from plumbline.schema.manifest import Manifest
from plumbline.staging.stager import MANIFEST_NAME
from plumbline.stores.protocol import Store, digest_object, read_bytes


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification: amount read, and problems by key."""

    manifest: Manifest
    files: int
    bytes_read: int
    problems: dict[str, str]

    @property
    def manifest_sha256(self) -> str:
        """Return the dataset's identity."""
        return self.manifest.digest


def verify_dataset(store: Store, name: str) -> Verified:
    """Read every object of the dataset once, and compare with the manifest.

    An unavailable store raises its error: the dataset is not judged then.
    """
    key = f"{name}/{MANIFEST_NAME}"
    manifest = read_model(Manifest, read_bytes(store, key), where=f"{store.url}/{key}")
    if manifest.name != name:
        raise InvalidInputError(f"is the manifest of {manifest.name!r}", where=f"{store.url}/{key}", key="name")
    problems: dict[str, str] = {}
    total = 0
    for file in manifest.files:
        try:
            size, sha256 = digest_object(store, f"{name}/{file.key}")
        except InvalidInputError as error:
            problems[file.key] = error.what
            continue
        total += size
        if size != file.size:
            problems[file.key] = f"is {size} bytes long, the manifest says {file.size}"
        elif sha256 != file.sha256:
            problems[file.key] = "does not match the digest in the manifest"
    return Verified(manifest, len(manifest.files), total, problems)
