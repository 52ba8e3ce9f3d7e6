"""Staging: verified download from a store to the local disk, during training."""

from plumbline.staging.cache import Cache as Cache
from plumbline.staging.cache import cache_limit as cache_limit
from plumbline.staging.pace import StagingProgress as StagingProgress
from plumbline.staging.stager import Stager as Stager
