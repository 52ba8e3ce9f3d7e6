"""Staging: verified download from a store to the local disk, during training."""

from __future__ import annotations

from plumbline.staging.cache import Cache, cache_limit
from plumbline.staging.pace import StagingProgress
from plumbline.staging.stager import Stager
from plumbline.staging.verify import Verified, verify_dataset

__all__ = ["Cache", "Stager", "StagingProgress", "Verified", "cache_limit", "verify_dataset"]
