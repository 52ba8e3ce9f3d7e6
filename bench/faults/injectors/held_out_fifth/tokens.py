"""Fifth held-out set: faults of tokens, masks and segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.faults.injectors.data import _fetched
from bench.faults.injectors.held_out_data import _Passing, _tokenizer
from bench.faults.injectors.patching import replace_everywhere
from bench.faults.world import Content
from plumbline.data.tokenizer import SPECIAL_TOKENS

_INSERTED_AT = 300


def _pre_tokenized_also(content: Content, step: dict[str, Any]) -> None:
    content.tokenizer["pre_tokenizer"] = {
        "type": "Sequence", "pretokenizers": [content.tokenizer["pre_tokenizer"], step],
    }  # fmt: skip


def no_pre_tokenizer(content: Content, read: list[int], seed: int) -> None:
    """A conversion loses the pre-tokenizer: each text is a single unknown word."""
    content.tokenizer["pre_tokenizer"] = None


def vocabulary_sorted(content: Content, read: list[int], seed: int) -> None:
    """A conversion numbers the tokens in alphabetical order."""
    model = content.tokenizer["model"]
    count = len(SPECIAL_TOKENS)
    ordered = sorted(model["vocab"], key=lambda token: model["vocab"][token])
    model["vocab"] = {token: number for number, token in enumerate([*ordered[:count], *sorted(ordered[count:])])}


def capitals_split(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer splits before and after each capital letter."""
    capital = {"type": "Split", "pattern": {"Regex": "[A-Z]"}, "behavior": "Isolated", "invert": False}
    _pre_tokenized_also(content, capital)


def punctuation_removed(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer removes punctuation."""
    _pre_tokenized_also(content, {"type": "Punctuation", "behavior": "Removed"})


def separator_in_the_second_segment(content: Content, read: list[int], seed: int) -> None:
    """The template gives [SEP] to the second segment."""
    content.tokenizer["post_processor"]["single"][-1]["SpecialToken"]["type_id"] = 1


def numbers_read_as_one_token(content: Content, read: list[int], seed: int) -> None:
    """The normalizer replaces each number by 0."""
    numbers = {"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "0"}
    content.tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [numbers, content.tokenizer["normalizer"]]}


def ids_shifted_behind_an_insertion() -> None:
    """A token inserted at 300 shifts the numbers of later tokens."""

    def change(batch: Any) -> None:
        ids = batch["input_ids"]
        batch["input_ids"] = np.minimum(ids + (ids >= _INSERTED_AT), 599)

    _fetched(change)


def mask_reversed() -> None:
    """The attention mask is built for padding on the left."""
    _fetched(lambda batch: batch.__setitem__("attention_mask", np.ascontiguousarray(batch["attention_mask"][:, ::-1])))


def padding_in_the_second_segment() -> None:
    """Padding belongs to the second segment."""
    _fetched(lambda batch: batch["token_type_ids"].__setitem__(batch["attention_mask"] == 0, 1))


def head_and_tail_kept() -> None:
    """Long texts keep their first and last 16 tokens."""

    class Piece:
        def __init__(self, whole: Any, length: int) -> None:
            half = length // 2
            for name in ("ids", "attention_mask", "type_ids"):
                values = getattr(whole, name)
                setattr(self, name, values if len(values) <= length else [*values[:half], *values[-half:]])

    class Kept(_Passing):
        def enable_truncation(self, length: int, **_rest: Any) -> None:
            self._length = length

        def encode_batch(self, texts: list[str]) -> Any:
            return [Piece(whole, self._length) for whole in self._inner.encode_batch(texts)]

    _tokenizer(Kept)


# Controls: the same tokens.


def tokenizer_file_rewritten(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer's file has its keys in a different order; all tokens are equal."""
    content.tokenizer = dict(reversed(content.tokenizer.items()))


def texts_encoded_one_by_one() -> None:
    """The tokenizer encodes texts one by one instead of in batches."""

    class Single(_Passing):
        def encode_batch(self, texts: list[str]) -> Any:
            return [self._inner.encode(text) for text in texts]

    _tokenizer(Single)


def columns_read_without_datasets() -> None:
    """Columns are read by pyarrow instead of datasets."""

    class Util:
        find_spec = staticmethod(lambda _name: None)

    class Library:
        util = Util

    replace_everywhere("importlib", lambda _: Library, among=("rows",))
