"""Object stores with a common interface: `file://`, `s3://`, `az://`, `gs://`."""

from __future__ import annotations

from plumbline.stores.opening import open_store, presign
from plumbline.stores.protocol import (
    BucketMissingError,
    ObjectExistsError,
    ObjectInfo,
    ObjectMissingError,
    ObjectReader,
    PreconditionFailedError,
    Store,
    StoreUnavailableError,
    ensure_content,
    ensure_object,
    read_bytes,
)
from plumbline.stores.retry import RetryingStore, RetryPolicy

__all__ = [
    "BucketMissingError",
    "ObjectExistsError",
    "ObjectInfo",
    "ObjectMissingError",
    "ObjectReader",
    "PreconditionFailedError",
    "RetryPolicy",
    "RetryingStore",
    "Store",
    "StoreUnavailableError",
    "ensure_content",
    "ensure_object",
    "open_store",
    "presign",
    "read_bytes",
]
