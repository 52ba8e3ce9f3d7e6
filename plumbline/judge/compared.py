"""Cache of a round's record comparisons, one for each pair. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from plumbline.judge.mismatches import Mismatch
from plumbline.judge.one_sided import COLUMNS
from plumbline.judge.pair import Pair
from plumbline.judge.spec_differences import spec_findings
from plumbline.judge.suspects import differences
from plumbline.judge.walk import Walk, differing, walk
from plumbline.judge.whole import WholeRecord, unequal_evidence, whole
from plumbline.records import LoadedRecord
from plumbline.schema.captured import UNKNOWN, captured
from plumbline.schema.fact import fact
from plumbline.schema.spec import PartName
from plumbline.schema.verdict import Finding

_MAX_PAIRS = 256
"""Maximum number of pairs whose comparison is in memory: those of one workload on a large fleet."""
_OTHER_TASK = fact("compared.one-spec")


@dataclass(frozen=True)
class Compared:
    """Comparison of a candidate with a reference, computed on first use.

    Every part raises `InvalidInputError` if a file of a record is malformed.
    """

    reference: WholeRecord
    candidate: WholeRecord

    @cached_property
    def problems(self) -> tuple[Finding, ...]:
        """Return the reasons why this pair cannot be judged."""
        left, right = self.reference.record, self.candidate.record
        if left.spec_sha256 != right.spec_sha256:
            other = Finding(
                check="record.spec", outcome="invalid", metric=fact("compared.spec-digest"), observed=right.spec_sha256,
                limit=left.spec_sha256, detail=_OTHER_TASK,
            )  # fmt: skip
            return (other, *spec_findings(self.reference, self.candidate))
        findings = [*self.reference.defects("reference"), *self.candidate.defects("candidate")]
        if (left.experiment is None) != (right.experiment is None):
            detail = fact("compared.experiment")
            findings.append(Finding(check="record.experiment", outcome="invalid", metric="experiment", detail=detail))
        return tuple(findings or (finding for _, finding in self._unequal if _hinders(finding)))

    @property
    def lost(self) -> tuple[Finding, ...]:
        """Return what one record lacks beside the other: no pass without it, but a drift."""
        return tuple(finding for _, finding in self._unequal if not _hinders(finding))

    @property
    def lacking(self) -> frozenset[str]:
        """Return the sides that lack evidence: `reference`, `candidate` or `either`."""
        return frozenset(side for side, _ in self._unequal)

    @cached_property
    def _unequal(self) -> tuple[tuple[str, Finding], ...]:
        return tuple(unequal_evidence(self.reference, self.candidate))

    @cached_property
    def suspects(self) -> tuple[str, ...]:
        """Return the differences between the two environment fingerprints."""
        return differences(self.reference.record.fingerprint, self.candidate.record.fingerprint)

    @cached_property
    def pair(self) -> Pair:
        """Return the pair of records with its tensor errors."""
        imposed = UNKNOWN if captured(self.reference.record.spec) else frozenset()
        return Pair(self.reference, self.candidate, imposed=imposed)

    @cached_property
    def walk(self) -> Walk | None:
        """Return the comparison of the probe runs; `None` if either is missing."""
        return walk(self.pair) if self.pair.probes is not None else None

    @cached_property
    def parts(self) -> Mapping[PartName, tuple[Mismatch, ...]]:
        """Map each part that was compared to its mismatches, up to the first that names a cause."""
        return dict(differing(self.pair, self.walk))


def _hinders(finding: Finding) -> bool:
    """Return whether nothing can be judged without what a record lacks."""
    return finding.outcome == "invalid" or finding.check == COLUMNS


class Comparisons:
    """Cache of a round's last comparisons, by pair of records."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], Compared] = {}
        """By the identities of both records, which the comparison keeps alive."""
        self._whole: dict[int, tuple[LoadedRecord, WholeRecord]] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def of(self, reference: LoadedRecord, candidate: LoadedRecord) -> Compared:
        """Return the cached comparison of two records."""
        left, right = self.whole(reference), self.whole(candidate)
        key = (id(left), id(right))
        found = self._pairs.pop(key) if key in self._pairs else Compared(left, right)
        self._pairs[key] = found
        if len(self._pairs) > _MAX_PAIRS:
            del self._pairs[next(iter(self._pairs))]
        return found

    def whole(self, record: LoadedRecord) -> WholeRecord:
        """Return the record with cached completeness checks."""
        if isinstance(record, WholeRecord):
            return record
        return self._whole.setdefault(id(record), (record, whole(record)))[1]
