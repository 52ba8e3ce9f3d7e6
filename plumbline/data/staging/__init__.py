"""Staging: verified download from a store to local disk, during training."""

from plumbline.data.staging.cache import Cache as Cache
from plumbline.data.staging.cache import cache_limit as cache_limit
from plumbline.data.staging.pace import StagingProgress as StagingProgress
from plumbline.data.staging.stager import Stager as Stager
