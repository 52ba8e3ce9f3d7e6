"""Transport of records: outboxes, gathering, and the central store."""

from __future__ import annotations

from plumbline.central.central_store import CentralStore, round_key, secret_key
from plumbline.central.gathering import Gathered, find_record, gather
from plumbline.central.outbox import fetch_record, publish_record, shared_checkpoint, upload_policy

__all__ = [
    "CentralStore",
    "Gathered",
    "fetch_record",
    "find_record",
    "gather",
    "publish_record",
    "round_key",
    "secret_key",
    "shared_checkpoint",
    "upload_policy",
]
