"""Result of one check of the doctor, with a hint; and the diagnosis of a store's refusal."""

from __future__ import annotations

from collections.abc import Iterable

from plumbline.errors import AccessError, ExitCode, PlumblineError, Refusal
from plumbline.schema.base import Model
from plumbline.schema.store_url import kind_at


class CheckResult(Model):
    """Result of one check."""

    where: str
    what: str
    well: bool = False
    hint: str = ""
    code: int = int(ExitCode.PASS)
    size: int = 0
    """Bytes that a round stages from this store."""


def failed(where: str, what: str, hint: str, code: ExitCode = ExitCode.USAGE) -> CheckResult:
    """Return a failed check."""
    return CheckResult(where=where, what=what, hint=hint, code=int(code))


def from_error(where: str, error: PlumblineError, hint: str = "") -> CheckResult:
    """Convert an error to a failed check result."""
    text = ": ".join(part for part in (error.where, error.key, error.what) if part)
    return CheckResult(where=where, what=text, hint=hint or error.hint, code=int(error.exit_code))


def worst_code(check_results: Iterable[CheckResult]) -> int:
    """Return the exit code; configuration errors outrank unavailability."""
    codes = [result.code for result in check_results if not result.well]
    order = (int(ExitCode.USAGE), int(ExitCode.INVALID), int(ExitCode.INCONCLUSIVE))
    return next((code for code in order if code in codes), int(ExitCode.PASS))


def explain_refusal(error: AccessError, url: str, needs: str) -> tuple[str, str]:
    """Return the problem and a hint; `needs` is the required permission."""
    kind = kind_at(url)
    if error.refusal is Refusal.CLOCK:
        return f"skewed clock: {error.what}", "start a time service here (chrony, systemd-timesyncd)"
    if error.refusal is Refusal.CREDENTIALS:
        hint = f"set credentials for {url} in this environment: {kind.credentials}{kind.also}"
        return f"wrong credentials: {error.what}", hint
    if error.refusal is Refusal.PERMISSIONS:
        example = f" ({kind.grants} has the policies)" if kind.grants else ""
        return f"wrong permissions: {error.what}", f"allow this environment's identity to {needs} {url}{example}"
    return error.what, error.hint or "check the credentials and permissions of this environment"
