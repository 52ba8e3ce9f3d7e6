"""Sentences of facts, for tests of what a user reads."""

from __future__ import annotations

from typing import Any

from plumbline.report.sentences import sentence_of
from plumbline.schema.fact import Fact

__all__ = ["said"]


def said(value: Any) -> Any:
    """Return the sentence of a fact, or the sentences of several; other values stay as they are."""
    if isinstance(value, Fact):
        return sentence_of(value)
    return type(value)(map(said, value)) if type(value) in (tuple, list) else value
