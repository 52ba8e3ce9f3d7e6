"""Isolation of platforms: a bad record affects only its own platform.

A record comes from a machine that the controller does not trust, and the judge is code that no one record may stop. As
at the boundary of a process, every error counts here: its traceback goes to the log, and its platform is `invalid`.
Errors that no record explains are not caught: failed infrastructure, and a controller without memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from plumbline.schema.errors import InconclusiveError, InvalidInputError

T = TypeVar("T")
_log = logging.getLogger(__name__)
_MAX_MESSAGE = 500


@dataclass(frozen=True, slots=True)
class Defect:
    """Reason why a platform's record cannot be judged."""

    why: str


def isolated(platform: str, work: Callable[[], T]) -> T | Defect:
    """Return the result of `work` on a platform's record, or the error."""
    try:
        return work()
    except (InconclusiveError, MemoryError):
        raise
    except InvalidInputError as error:
        return Defect(str(error)[:_MAX_MESSAGE])
    except Exception as error:  # noqa: BLE001 - the boundary of one platform: see above
        _log.exception("%s: its record cannot be judged", platform)
        text = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_MESSAGE]
        return Defect(f"a defect of Plumbline that this record shows (hint: report it with the log): {text}")


def largest_judgeable(
    names: Sequence[str], judge: Callable[[Sequence[str]], object]
) -> tuple[tuple[str, ...], dict[str, Defect]]:
    """Return platforms that can be judged together, and the others' defects.

    `names` starts with the reference, and each platform is judged together with it. If the reference cannot be
    compared with any platform, more platforms remain without it.
    """
    choice = _judgeable(names, judge)
    if len(choice[1]) > 1:
        choice = max(choice, _judgeable((*names[1:], *names[:1]), judge), key=lambda choice: len(choice[0]))
    kept, defects = choice
    if isinstance(isolated(", ".join(kept), partial(judge, kept)), Defect):
        # Platforms of which each can be judged beside the reference break the judge together.
        kept, more = _judgeable(kept, judge, beside=None)
        defects |= more
    return kept, defects


def _judgeable(
    names: Sequence[str], judge: Callable[[Sequence[str]], object], *, beside: int | None = 1
) -> tuple[tuple[str, ...], dict[str, Defect]]:
    """Judge platforms one by one; return those judged, and others' defects."""
    kept: tuple[str, ...] = ()
    defects: dict[str, Defect] = {}
    for name in names:
        found = isolated(name, partial(judge, (*kept[:beside], name)))
        if isinstance(found, Defect):
            defects[name] = found
        else:
            kept = (*kept, name)
    return kept, defects
