"""The selfcheck of each side: wrong bits of the shipped tiny training, found without a second machine."""

from __future__ import annotations

from plumbline.records import LoadedRecord
from plumbline.schema.verdict import Cause, Finding

__all__ = ["failed_at", "selfcheck"]


def failed_at(record: LoadedRecord) -> str | None:
    """Return where a record's selfcheck found the first wrong bits; `None` if it passed or is unknown."""
    check = record.record.evidence.selfcheck
    return check.at if check is not None and check.verdict == "drift" else None


def selfcheck(reference: LoadedRecord, candidate: LoadedRecord) -> tuple[Finding, Cause] | None:
    """Return finding and cause if the candidate's selfcheck failed, and the reference's did not."""
    at = failed_at(candidate)
    if at is None or failed_at(reference) is not None:
        return None
    finding = Finding(
        check="selfcheck.bits", outcome="drift", metric="first wrong bits of the shipped training", observed=at,
        limit="equal", detail="on the candidate's machine, before its training",
    )  # fmt: skip
    evidence = ("the shipped tiny training in portable arithmetic, which no kernel and no other device changes",)
    why = f"this machine's stack or device does not compute what the release computes: {at}"
    return finding, Cause(code="software", sure="confirmed", why=why, evidence=evidence)
