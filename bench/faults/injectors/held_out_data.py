"""Held out: faults of rows, order, tokenizing and randomness that nobody had in mind while the judge was written.

Numbers in brackets are issues of public trackers in which the like of it stands.
"""

from __future__ import annotations

import os
import time
import unicodedata
import zlib
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from bench.faults.injectors.data import _fetched, _positions
from bench.faults.injectors.patching import after_build, replace_everywhere
from bench.faults.world import BATCH, TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.staging import order
from plumbline.train import evaluation

# In the files.


def shard_uploaded_twice(content: Content, read: list[int], seed: int) -> None:
    """One shard was uploaded in the place of another as well."""
    content.train[64:128] = content.train[:64]


def decomposed_accents(content: Content, read: list[int], seed: int) -> None:
    """Texts went through a tool that decomposes accents (NFD)."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(unicodedata.normalize("NFD", one.text), one.label))


def white_space_tidied(content: Content, read: list[int], seed: int) -> None:
    """An export made every run of white space one blank; no token changes."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(" ".join(one.text.split()), one.label))


def label_map_permuted(content: Content, read: list[int], seed: int) -> None:
    """The two classes changed their numbers."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(one.text, 1 - (one.label or 0)))


def decomposing_normalizer(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer decomposes accents before anything else (tokenizers 2116)."""
    content.tokenizer["normalizer"] = {
        "type": "Sequence", "normalizers": [{"type": "NFD"}, content.tokenizer["normalizer"]],
    }  # fmt: skip


def numbers_exchanged(content: Content, read: list[int], seed: int) -> None:
    """Two words of the vocabulary changed their numbers."""
    vocabulary = content.tokenizer["model"]["vocab"]
    texts = " ".join(row.text for row in content.train)
    words = sorted(word for word in vocabulary if len(word) > 3 and texts.count(f" {word} ") > 20)
    one, other = words[seed % len(words)], words[(seed + 1) % len(words)]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]


# In the process.


def labels_of_neighbours() -> None:
    """The first two rows of each batch have each other's labels."""

    def change(batch: Any) -> None:
        batch["labels"][:2] = batch["labels"][:2][::-1].copy()

    _fetched(change)


def other_shuffle() -> None:
    """A release shuffles by another generator."""
    order._shuffled = lambda count, *what: np.random.default_rng(zlib.crc32(repr(what).encode())).permutation(count)


def batches_crossed() -> None:
    """Two workers hand in their batches the other way round."""
    _positions(lambda positions: [place ^ BATCH for place in positions])


def rows_dealt_out() -> None:
    """Rows are dealt out to two processes one by one, not in halves."""
    _positions(lambda positions: [*positions[::2], *positions[1::2]])


def batch_skipped() -> None:
    """A restart at the seventh batch skips one."""
    _positions(lambda positions: [place + BATCH * (place >= 6 * BATCH) for place in positions])


def _tokenizer(patched: type) -> None:
    original = Tokenizer.from_buffer

    class Module:
        from_buffer = staticmethod(lambda content: patched(original(content)))

    replace_everywhere("Tokenizer", lambda _: Module, among=("rows",))


class _Passing:
    """A tokenizer that passes everything on to another."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def truncated_short() -> None:
    """Long texts lose one token too many."""

    class Short(_Passing):
        def enable_truncation(self, length: int, **rest: Any) -> None:
            self._inner.enable_truncation(length - 1, **rest)

    _tokenizer(Short)


def stale_tokens() -> None:
    """A cache gives some rows the tokens that an earlier, lower-casing tokenizer made (datasets 6369)."""

    class Stale(_Passing):
        def encode_batch(self, texts: list[str]) -> Any:
            return self._inner.encode_batch([text.lower() if len(text) % 4 == 0 else text for text in texts])

    _tokenizer(Stale)


def other_padding() -> None:
    """Padding gets the number of the unknown token."""

    def change(batch: Any) -> None:
        batch["input_ids"][batch["attention_mask"] == 0] = 1

    _fetched(change)


def separator_hidden() -> None:
    """The attention mask is one short."""

    def change(batch: Any) -> None:
        mask = batch["attention_mask"]
        mask[np.arange(len(mask)), mask.sum(1) - 1] = 0

    _fetched(change)


# Randomness.


def torch_unseeded() -> None:
    """Python and NumPy are seeded, torch is not."""

    def wrap(seed: Any) -> Any:
        def seeded(value: int) -> None:
            seed(value)
            torch.manual_seed(67280421310721)

        return seeded

    replace_everywhere("seed_generators", wrap)


def numpy_reseeded() -> None:
    """A collate function seeds NumPy's generator each time."""
    _fetched(lambda _batch: np.random.seed(0))  # noqa: NPY002 - the global one is what such functions seed


def classifier_dropout() -> None:
    """Dropout before the classifier alone is on."""

    def change(model: Any) -> None:
        model.dropout.p = 0.1

    after_build(change)


def seeded_by_the_clock() -> None:
    """Generators are seeded by the time of day."""
    replace_everywhere("seed_generators", lambda seed: lambda _value: seed(time.time_ns() % 2**31))


def batches_as_they_come() -> None:
    """Of two batches that one comes first whose worker is done first."""
    crossed = [BATCH * (os.urandom(1)[0] & 1) for _ in range(64)]
    _positions(lambda positions: [place ^ crossed[place // (2 * BATCH)] for place in positions])


def evaluation_races() -> None:
    """Evaluation sums in an order that changes from run to run."""
    answers = evaluation._answers

    def raced(logits: Any, labels: Any) -> Any:
        noise = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))
        return answers(logits * (1 + 1.2e-7 * noise.integers(-1, 2, logits.shape)), labels)

    evaluation._answers = raced
