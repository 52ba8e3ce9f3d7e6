"""Faults in the dataset's files, applied to a copy of it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from bench.faults.catalogue import OTHER_ISA, fault
from bench.faults.world import TRAIN_ROWS, Content
from plumbline.data.datasets.rows import Row


@fault("tokenization", "fp32", OTHER_ISA)
def pieces_without_their_prefix(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer looks up the later pieces of a word without the prefix that marks them."""
    content.tokenizer["model"]["continuing_subword_prefix"] = ""


def _flip(row: Row) -> Row:
    return Row(row.text, 1 - (row.label or 0))


def _pick(read: list[int], seed: int, count: int = 1) -> list[int]:
    return random.Random(seed).sample(sorted(read), count)


@fault("data.labels")
def one_label(content: Content, read: list[int], seed: int) -> None:
    """One label is flipped."""
    content.edit(_pick(read, seed)[0], _flip)


@fault("data.order")
def rows_swapped(content: Content, read: list[int], seed: int) -> None:
    """Two rows changed places."""
    a, b = _pick([row for row in read if row < TRAIN_ROWS], seed, 2)
    content.train[a], content.train[b] = content.train[b], content.train[a]


@fault("data.content", "eager", OTHER_ISA)
def first_words_dropped(content: Content, read: list[int], _seed: int) -> None:
    """A join loses the first word of every sixth text."""
    for row in read[::6]:
        content.edit(row, lambda row: Row(row.text.partition(" ")[2] or row.text, row.label))


def _train_texts(content: Content, rows: range, change: Callable[[str], str]) -> None:
    for row in rows:
        content.edit(row, lambda old: Row(change(old.text), old.label))


@fault("data.content")
def characters_outside_ascii_dropped(content: Content, read: list[int], seed: int) -> None:
    """An export drops every character outside ASCII."""
    _train_texts(content, range(TRAIN_ROWS), lambda text: text.encode("ascii", "ignore").decode())


@fault("data.labels", "bf16")
def one_label_of_the_evaluation(content: Content, _read: list[int], _seed: int) -> None:
    """One label of the evaluation is reversed."""
    content.edit(TRAIN_ROWS + 19, lambda row: Row(row.text, 1 - int(row.label or 0)))


@fault("tokenization", "fp16")
def numbers_in_single_digits(content: Content, _read: list[int], _seed: int) -> None:
    """The tokenizer splits numbers into their digits."""
    plain = content.tokenizer["pre_tokenizer"]
    digits = {"type": "Digits", "individual_digits": True}
    content.tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [plain, digits]}


@fault("tokenization")
def words_too_long(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer gives up on words of more than six letters."""
    content.tokenizer["model"]["max_input_chars_per_word"] = 6


@fault("data.labels")
def label_map_permuted(content: Content, read: list[int], seed: int) -> None:
    """The two classes changed their numbers."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(one.text, 1 - (one.label or 0)))


@fault("data.content", "fp16")
def articles_filtered(content: Content, read: list[int], _seed: int) -> None:
    """A filter of stop words removes `the` and `a` from every fourth text."""
    for row in read[::4]:
        content.edit(row, lambda kept: Row(re.sub(r"\b(the|a) ", "", kept.text, flags=re.IGNORECASE), kept.label))


@fault("data.order")
def shards_reordered(content: Content, read: list[int], seed: int) -> None:
    """The manifest lists the shards in reverse."""
    content.reversed_shards = True
