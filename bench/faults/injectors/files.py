"""Faults in the dataset's files, applied to a copy of it."""

import random
import re

from bench.faults.catalogue import OTHER_ISA, fault
from bench.faults.world import TRAIN_ROWS
from plumbline.data.datasets.rows import Row


@fault("tokenization", "fp32", OTHER_ISA)
def pieces_without_their_prefix(content, _read, _seed):
    """The tokenizer looks up the later pieces of a word without the prefix that marks them."""
    content.tokenizer["model"]["continuing_subword_prefix"] = ""


def _flip(row):
    return Row(row.text, 1 - (row.label or 0))


def _edit_texts(content, rows, change):
    for row in rows:
        content.edit(row, lambda old: Row(change(old.text), old.label))


@fault("data.labels")
def one_label(content, read, seed):
    """One label is flipped."""
    content.edit(random.Random(seed).sample(sorted(read), 1)[0], _flip)


@fault("data.order")
def rows_swapped(content, read, seed):
    """Two rows changed places."""
    a, b = random.Random(seed).sample(sorted(row for row in read if row < TRAIN_ROWS), 2)
    content.train[a], content.train[b] = content.train[b], content.train[a]


@fault("data.content", "eager", OTHER_ISA)
def first_words_dropped(content, read, _seed):
    """A join loses the first word of every sixth text."""
    _edit_texts(content, read[::6], lambda text: text.partition(" ")[2] or text)


@fault("data.content")
def characters_outside_ascii_dropped(content, _read, _seed):
    """An export drops every character outside ASCII."""
    _edit_texts(content, range(TRAIN_ROWS), lambda text: text.encode("ascii", "ignore").decode())


@fault("data.labels", "bf16")
def one_label_of_the_evaluation(content, _read, _seed):
    """One label of the evaluation is reversed."""
    content.edit(TRAIN_ROWS + 19, _flip)


@fault("tokenization", "fp16")
def numbers_in_single_digits(content, _read, _seed):
    """The tokenizer splits numbers into their digits."""
    plain = content.tokenizer["pre_tokenizer"]
    digits = {"type": "Digits", "individual_digits": True}
    content.tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [plain, digits]}


@fault("tokenization")
def words_too_long(content, _read, _seed):
    """The tokenizer gives up on words of more than six letters."""
    content.tokenizer["model"]["max_input_chars_per_word"] = 6


@fault("data.labels")
def label_map_permuted(content, _read, _seed):
    """The two classes changed their numbers."""
    for row in range(TRAIN_ROWS):
        content.edit(row, _flip)


@fault("data.content", "fp16")
def articles_filtered(content, read, _seed):
    """A filter of stop words removes `the` and `a` from every fourth text."""
    _edit_texts(content, read[::4], lambda text: re.sub(r"\b(the|a) ", "", text, flags=re.IGNORECASE))


@fault("data.order")
def shards_reordered(content, _read, _seed):
    """The manifest lists the shards in reverse."""
    content.reversed_shards = True
