"""What a worker is told: small, plain JSON, and everything that a training needs but its bytes.

Here, beside dispatch, and not among the rounds: a worker that reads its order loads no judge and no report.
"""

from __future__ import annotations

from pydantic import Field, ValidationError

from plumbline.errors import InvalidInputError
from plumbline.schema.base import Model, Name, first_problem
from plumbline.schema.expected import Expected
from plumbline.schema.record import RunRecord
from plumbline.schema.spec import RunSpec
from plumbline.schema.suite import StoreUrl

__all__ = ["TrainingOrder", "read_order"]


class TrainingOrder(Model):
    """One training on one platform; it names only that platform's own stores, and carries no secret."""

    platform: Name
    data: StoreUrl
    outbox: StoreUrl
    record_id: Name
    round_id: Name
    job: Name = "job"
    """The training, whichever attempt at it: a checkpoint of one attempt serves the next."""
    attempt: int = Field(default=0, ge=0)
    nonce: str = Field(default="", max_length=128)
    """A value that only this round knows. It stands in the record, and so proves which order the record answers."""
    spec: RunSpec
    expected: Expected = Expected()
    experiment_id: Name | None = None
    run_seconds: float = Field(gt=0)

    def foreign_fields(self, record: RunRecord) -> tuple[str, ...]:
        """Return the fields in which `record` is not what this order asked for; empty if the record answers it."""
        experiment_id = record.experiment.experiment_id if record.experiment else None
        pairs = {
            "record_id": (self.record_id, record.record_id),
            "platform": (self.platform, record.platform),
            "round_id": (self.round_id, record.round_id),
            "attempt": (self.attempt, record.attempt),
            "nonce": (self.nonce, record.nonce),
            "spec_sha256": (self.spec.digest, record.spec_sha256),
            "experiment": (self.experiment_id, experiment_id),
        }
        return tuple(name for name, (ordered, found) in pairs.items() if ordered != found)


def read_order(content: object) -> TrainingOrder:
    """The order in a flow run's parameters, which anybody with access to the server may have written."""
    try:
        return TrainingOrder.model_validate(content)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise InvalidInputError(reason, where="training order", key=key) from error
