"""Sentences of facts, for tests of what a user reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from plumbline.report.sentences import sentence_of
from plumbline.schema.fact import Fact


def said(value: Any) -> Any:
    """Return the sentence of a fact, or the sentences of several; other values stay as they are."""
    if isinstance(value, Fact):
        return sentence_of(value)
    return type(value)(map(said, value)) if type(value) in (tuple, list) else value


def failures_of(tried: Iterable[Any]) -> list[str]:
    """Return why each experiment that could not be run failed."""
    failed = [line for line in tried if isinstance(line, Fact) and line.code == "experiment.failed"]
    return [said(line.values["why"]) for line in failed]
