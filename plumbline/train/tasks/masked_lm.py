"""Masked language modelling: predict the hidden tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plumbline.data.staging.order import random_keys
from plumbline.schema.spec import ModelSpec, RunSpec
from plumbline.train.failure import TrainingFailedError
from plumbline.train.tasks import IGNORED, Labelling, Task

if TYPE_CHECKING:
    from plumbline.train.rows import Rows


_SPECIAL = (("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"), ("<mask>", "<s>", "</s>", "<pad>", "<unk>"))
"""Tokens that are never hidden, the mask first: BERT's and RoBERTa's."""


class _Masking:
    """BERT's random masking, keyed by row and epoch.

    Of the hidden tokens, 80% become [MASK], 10% a random token, and 10% stay.
    """

    def __init__(self, spec: RunSpec, rows: Rows) -> None:
        self._spec = spec
        find = rows.tokenizer.token_to_id
        names = next((names for names in _SPECIAL if find(names[0]) is not None), None)
        if names is None:
            raise TrainingFailedError("has no [MASK] or <mask> token", code="tokenizer", where="tokenizer")
        special_ids = [token for token in map(find, names) if token is not None]
        self._mask, self._num_tokens = special_ids[0], rows.tokenizer.get_vocab_size(with_added_tokens=True)
        self._special = np.array(special_ids)

    def __call__(self, batch: dict[str, NDArray[np.int64]], epochs: NDArray[np.int64]) -> None:
        spec, ids = self._spec, batch["input_ids"]
        length = ids.shape[1]
        keys = np.stack([
            random_keys(2 * length, "mask", spec.seed, int(row), int(epoch))
            for row, epoch in zip(batch["row_ids"], epochs, strict=True)
        ])  # fmt: skip
        chosen, kind = keys[:, :length] >> np.uint64(32), keys[:, length:]
        hidden = chosen < np.uint64(round(spec.data.mask_probability * 2**32))
        hidden &= ~np.isin(ids, self._special) & (batch["attention_mask"] == 1)
        batch["labels"] = np.where(hidden, ids, IGNORED)
        tenth, other = (kind >> np.uint64(32)) % np.uint64(10), (kind & np.uint64(0xFFFFFFFF)).astype(np.int64)
        ids = np.where(hidden & (tenth < 8), self._mask, ids)
        batch["input_ids"] = np.where(hidden & (tenth == 8), other % self._num_tokens, ids)


class _MaskedLM(Task):
    head = "MaskedLM"

    def head_products(self, model: ModelSpec) -> tuple[int, int]:
        return model.hidden_size * model.hidden_size + model.hidden_size * model.vocab_size, 0

    def labelling(self, spec: RunSpec, rows: Rows) -> Labelling:
        return _Masking(spec, rows)


TASK = _MaskedLM()
