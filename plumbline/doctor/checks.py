"""One thing that was looked at: well, or what is wrong with it and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable

from plumbline.errors import ExitCode, PlumblineError
from plumbline.schema.base import Model

__all__ = ["CheckResult", "from_error", "worst_code"]


class CheckResult(Model):
    """The outcome of one check."""

    where: str
    what: str
    well: bool = False
    hint: str = ""
    code: int = int(ExitCode.PASS)
    size: int = 0
    """Bytes that a round has to stage from here."""


def from_error(where: str, error: PlumblineError, hint: str = "") -> CheckResult:
    """What an error says, as a check's outcome."""
    what = ": ".join(part for part in (error.where, error.key, error.what) if part)
    return CheckResult(where=where, what=what, hint=hint or error.hint, code=int(error.exit_code))


def worst_code(found: Iterable[CheckResult]) -> int:
    """The exit code: what a person has to mend counts before what does not answer."""
    codes = [one.code for one in found if not one.well]
    order = (int(ExitCode.USAGE), int(ExitCode.INVALID), int(ExitCode.INCONCLUSIVE))
    return next((code for code in order if code in codes), int(ExitCode.PASS))
