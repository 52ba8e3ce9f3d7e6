"""Tags of flow runs: those that mark a suite's controllers, and none for the tasks below them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prefect.context import TagsContext

__all__ = ["round_tags", "untagged"]


def round_tags(suite: str) -> list[str]:
    """What marks the controllers of a suite."""
    return ["plumbline-round", f"suite:{suite}"]


@contextmanager
def untagged() -> Iterator[None]:
    """Tasks without the tags of their run.

    Prefect asks the server for a slot of each tag before each task. On SQLite that request is refused about every
    second time, because it reads and then writes, and the client tries again after two seconds.
    """
    with TagsContext(current_tags=set()):
        yield
