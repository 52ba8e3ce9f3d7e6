"""Order of a training for a worker: small plain JSON, without data.

The module is part of dispatch, so that a worker that reads its order loads neither judge nor report.
"""

from __future__ import annotations

from pydantic import Field

from plumbline import __version__
from plumbline.schema.base import Label, Model, Name
from plumbline.schema.experiment import AbOrder
from plumbline.schema.fingerprint import Expected
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite_values import StoreUrl


class TrainingOrder(Model):
    """One training on one platform, with that platform's stores only, without secrets."""

    version: Label = __version__
    """Version of the controller's plumbline, which the worker compares with its own before it reads the rest."""
    platform: Name
    data: StoreUrl
    outbox: StoreUrl
    record_id: Name
    round_id: Name
    job: Name = "job"
    """Name of the training, equal for all attempts: they share its checkpoint."""
    attempt: int = Field(default=0, ge=0)
    nonce: str = Field(default="", max_length=128)
    """Secret value of this round, copied to the record, which proves that the record answers this order."""
    spec: RunSpec
    expected: Expected = Expected()
    experiment_id: Name | None = None
    ab: AbOrder | None = None
    """Order of an A/B, answered by one record; `None` for an ordinary training."""
    python: str = Field(default="", max_length=4096)
    """Interpreter of the training, or its environment's folder, on the worker; empty: the worker's own."""
    run_seconds: float = Field(gt=0)

    def foreign_fields(self, record: RunRecord) -> tuple[str, ...]:
        """Return the fields in which `record` contradicts this order."""
        experiment_id = record.experiment.experiment_id if record.experiment else None
        pairs = {
            "record_id": (self.record_id, record.record_id),
            "platform": (self.platform, record.platform),
            "round_id": (self.round_id, record.round_id),
            "attempt": (self.attempt, record.attempt),
            "nonce": (self.nonce, record.nonce),
            "spec_sha256": (self.spec.digest, record.spec_sha256),
            "experiment": (self.experiment_id, experiment_id),
            "ab": (
                self.ab.digest if self.ab else None,
                record.evidence.ab.order_sha256 if record.evidence.ab else None,
            ),
        }
        return tuple(name for name, (ordered, recorded) in pairs.items() if ordered != recorded)
