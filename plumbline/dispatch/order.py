"""What a worker is told: small, plain JSON, and everything that a training needs but its bytes.

Here, beside dispatch, and not among the rounds: a worker that reads its order loads no judge and no report.
"""

from __future__ import annotations

from pydantic import Field, ValidationError

from plumbline.errors import InvalidInputError
from plumbline.schema.base import Model, Name, first_problem
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
    spec: RunSpec
    experiment_id: Name | None = None
    run_seconds: float = Field(gt=0)


def read_order(content: object) -> TrainingOrder:
    """The order in a flow run's parameters, which anybody with access to the server may have written."""
    try:
        return TrainingOrder.model_validate(content)
    except ValidationError as error:
        key, reason = first_problem(error)
        raise InvalidInputError(reason, where="training order", key=key) from error
