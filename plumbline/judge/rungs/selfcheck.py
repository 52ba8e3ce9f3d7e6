"""Self-check: a machine that computes a bundled reference training wrong."""

from __future__ import annotations

from plumbline.records import LoadedRecord
from plumbline.schema.fact import fact
from plumbline.schema.verdict import Cause, Finding


def failed_at(record: LoadedRecord) -> str | None:
    """Return the self-check's first wrong tensor; `None` if passed or unknown."""
    check = record.record.evidence.selfcheck
    return check.at if check is not None and check.verdict == "drift" else None


def selfcheck(candidate: LoadedRecord) -> tuple[Finding, Cause] | None:
    """Return finding and cause if the candidate failed the self-check."""
    at = failed_at(candidate)
    if at is None:
        return None
    finding = Finding(
        check="selfcheck.bits", outcome="drift", metric=fact("selfcheck.first-wrong-bits"), observed=at,
        limit="equal", detail=fact("selfcheck.when"),
    )  # fmt: skip
    evidence = (fact("selfcheck.what"),)
    why = fact("selfcheck.different-bits", at=at)
    return finding, Cause(code="software", sure="confirmed", why=why, evidence=evidence)
