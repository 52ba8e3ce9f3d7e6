"""Staging: verified download from a store to the local disk, during training."""

from __future__ import annotations

from plumbline.staging.cache import Cache
from plumbline.staging.limit import cache_limit
from plumbline.staging.stager import Stager
from plumbline.staging.staging_progress import Progress
from plumbline.staging.verify import Verified, verify_dataset

__all__ = ["Cache", "Progress", "Stager", "Verified", "cache_limit", "verify_dataset"]
