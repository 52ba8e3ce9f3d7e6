"""Sixth held-out set: faults of the tokenizer."""

from __future__ import annotations

import json
from typing import Any

from bench.faults.injectors.data import _fetched
from bench.faults.injectors.held_out_data import _Passing, _tokenizer
from bench.faults.world import Content
from plumbline.data.tokenizer import train_tokenizer

_STORED_LENGTH = 24


def byte_level_pre_tokenizer(content: Content, read: list[int], seed: int) -> None:
    """A conversion gives the tokenizer the byte-level splitter of GPT-2."""
    content.tokenizer["pre_tokenizer"] = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
    }  # fmt: skip


def punctuation_joined_to_words(content: Content, read: list[int], seed: int) -> None:
    """A conversion joins punctuation to the word before."""
    content.tokenizer["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "WhitespaceSplit"},
            {"type": "Punctuation", "behavior": "MergedWithPrevious"},
        ],
    }


def vocabulary_read_as_latin_1(content: Content, read: list[int], seed: int) -> None:
    """A conversion reads the vocabulary file as Latin-1, so that words with accents are unknown."""
    model = content.tokenizer["model"]
    model["vocab"] = {token.encode().decode("latin-1"): number for token, number in model["vocab"].items()}


def tokenizer_trained_on_other_rows(content: Content, read: list[int], seed: int) -> None:
    """A team trains the tokenizer again, with the same settings, on the training split alone."""
    size = len(content.tokenizer["model"]["vocab"])
    data, _ = train_tokenizer([row.text for row in content.train], size, lowercase=False)
    content.tokenizer = json.loads(data)


def stored_maximum_wins() -> None:
    """A release prefers the maximum of 24 tokens in the tokenizer's file to the requested length."""

    class Stored(_Passing):
        def enable_truncation(self, length: int, **rest: Any) -> None:
            self._inner.enable_truncation(min(length, _STORED_LENGTH), **rest)

    _tokenizer(Stored)


def padded_before_the_separator() -> None:
    """A tokenizer pads the text first, and adds [SEP] behind the padding."""

    def change(batch: Any) -> None:
        ids, mask = batch["input_ids"], batch["attention_mask"]
        last = mask.sum(1) - 1
        for row, at in enumerate(last):
            separator = ids[row, at]
            ids[row, at], mask[row, at] = 0, 0
            ids[row, -1], mask[row, -1] = separator, 1

    _fetched(change)


def separator_between_sentences(content: Content, read: list[int], seed: int) -> None:
    """A tokenizer's normalizer writes [SEP] between sentences, where it is read as plain text."""
    separator = {"type": "Replace", "pattern": {"String": ". "}, "content": " [SEP] "}
    content.tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [separator, content.tokenizer["normalizer"]]}


# Controls: files that differ and give the same tokens.


def tokenizer_file_stores_padding(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer's file also stores a truncation and a padding, which the trainer sets itself."""
    content.tokenizer["truncation"] = {
        "direction": "Right", "max_length": 128, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    content.tokenizer["padding"] = {
        "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip


def vocabulary_listed_in_reverse(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer's file lists the same vocabulary from the last token to the first."""
    model = content.tokenizer["model"]
    model["vocab"] = dict(reversed(model["vocab"].items()))


def normalizer_in_a_sequence(content: Content, read: list[int], seed: int) -> None:
    """A conversion wraps the normalizer in a sequence of length one."""
    content.tokenizer["normalizer"] = {"type": "Sequence", "normalizers": [content.tokenizer["normalizer"]]}
