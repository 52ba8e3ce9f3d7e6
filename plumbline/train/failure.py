"""Errors of a training that cannot continue."""

from __future__ import annotations

from plumbline.errors import TrainingError, UnavailableError

OUT_OF_MEMORY = "out-of-memory"


class TrainingFailedError(TrainingError):
    """Failed training.

    `code` is one of `non-finite`, `out-of-memory`, `labels`, `weights`, `tokenizer`, `data`, `device`, `setting`,
    `portable` (an operation without a portable form) and `error` (any other exception).
    """

    def __init__(
        self, what: str, *, code: str, part: str = "", step: int | None = None, where: str = "", key: str = "",
        hint: str = "",
    ) -> None:  # fmt: skip
        place = where or " ".join(filter(None, (part, "" if step is None else f"step {step}")))
        super().__init__(what, where=place, key=key, hint=hint)
        self.code, self.part, self.step = code, part, step


class PeerLostError(UnavailableError):
    """Lost contact with another process of the training."""
