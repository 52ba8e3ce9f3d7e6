"""Faults of reading, order, tokenizing and randomness inside the training process; and those of altered files."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional

from bench.faults.injectors.patching import replace_everywhere, wrap_method
from bench.faults.world import BATCH, STEPS, TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.staging import order
from plumbline.train import batches
from plumbline.train.tasks import masked_lm

# In the process.


def order_seed() -> None:
    """Rows are shuffled with another seed."""
    wrap_method(
        order.Order,
        "__init__",
        lambda init: lambda self, manifest, seed, recipe: init(self, manifest, seed + 1, recipe),
    )


def unshuffled() -> None:
    """Rows come as they lie."""
    order._shuffled = lambda count, *what: np.arange(count, dtype=np.int64)


def _positions(change: Any) -> None:
    wrap_method(
        batches.TrainingRows,
        "__getitems__",
        lambda get: lambda self, positions: get(self, change(list(positions))),
    )


def dropped_row() -> None:
    """From the fourth batch on everything stands one place earlier: a row was lost."""
    _positions(lambda positions: [place + (place >= 3 * BATCH + 2) for place in positions])


def doubled_row() -> None:
    """One row stands twice in the sixth batch."""
    _positions(lambda positions: [place - 1 if place == 5 * BATCH + 3 else place for place in positions])


def reversed_batch() -> None:
    """Each batch's rows come in reverse."""
    _positions(lambda positions: positions[::-1])


def last_batch_refilled() -> None:
    """The last batch is filled up from the start."""
    last = (STEPS - 1) * BATCH + BATCH // 2
    _positions(lambda positions: [place - last if place >= last else place for place in positions])


def _fetched(change: Any) -> None:
    def wrap(fetch: Any) -> Any:
        def fetched(self: Any, rows: Any, epochs: Any) -> Any:
            batch = fetch(self, rows, epochs)
            change(batch)
            return batch

        return fetched

    wrap_method(batches._Encoded, "_fetch", wrap)


def labels_shifted() -> None:
    """Labels are one row off in every batch."""
    _fetched(lambda batch: batch.__setitem__("labels", np.roll(batch["labels"], 1)))


def one_label_in_memory() -> None:
    """The label of one row in seven is another, in memory only."""
    _fetched(lambda batch: batch["labels"].__setitem__(batch["row_ids"] % 7 == 3, 0))


def mask_lost() -> None:
    """The padding mask is all ones."""
    _fetched(lambda batch: batch["attention_mask"].fill(1))


def segments_wrong() -> None:
    """The second half of each row is called a second segment."""
    _fetched(lambda batch: batch["token_type_ids"][:, 16:].fill(1))


def encoder_bug() -> None:
    """A tokenizers release that loses the third token of some texts."""

    class Wrong:
        def __init__(self, one: Any) -> None:
            self.ids = [*one.ids[:3], *one.ids[4:], 0]
            self.attention_mask, self.type_ids = one.attention_mask, one.type_ids

    original = Tokenizer.from_buffer

    class Patched:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        @property
        def truncation(self) -> Any:
            return self._inner.truncation

        def encode_batch(self, texts: list[str]) -> list[Any]:
            found = self._inner.encode_batch(texts)
            return [Wrong(one) if len(text) % 3 == 0 else one for one, text in zip(found, texts, strict=True)]

    class Module:
        from_buffer = staticmethod(lambda content: Patched(original(content)))

    replace_everywhere("Tokenizer", lambda _: Module, among=("rows",))


def mask_draw_seed() -> None:
    """Masked language modelling hides other tokens."""
    wrap_method(
        masked_lm,
        "random_keys",
        lambda keys: lambda count, what, seed, *rest: keys(count, what, seed + (what == "mask"), *rest),
    )


def unseeded_order() -> None:
    """Each run shuffles anew."""
    seed = int.from_bytes(os.urandom(4), "little")
    wrap_method(
        order.Order,
        "__init__",
        lambda init: lambda self, manifest, _seed, recipe: init(self, manifest, seed, recipe),
    )


def unseeded_augmentation() -> None:
    """A loader's worker masks tokens with an unseeded generator."""
    generator = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))

    def change(batch: Any) -> None:
        ids = batch["input_ids"]
        ids[(generator.random(ids.shape) < 0.02) & (ids > 4)] = 1

    _fetched(change)


# Randomness.


def other_seed() -> None:
    """The generators start from another seed."""
    replace_everywhere("seed_generators", lambda seed: lambda value: seed(value + 1))


def python_unseeded() -> None:
    """Python's own generator keeps a state of its own."""

    def wrap(seed: Any) -> Any:
        def seeded(value: int) -> None:
            seed(value)
            random.seed(99)

        return seeded

    replace_everywhere("seed_generators", wrap)


def dropout_on() -> None:
    """Dropout is on in the probe."""
    replace_everywhere(
        "build_model", lambda build: lambda spec, *, dropout, **rest: build(spec, dropout=0.1, **rest), among=("probe",)
    )


def attention_dropout_on() -> None:
    """Only the attention's weights are dropped."""
    drop = functional.dropout

    def dropped(value: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return drop(value, 0.1 if training and value.dim() == 4 else p, training, inplace)

    functional.dropout = dropped


def extra_draw() -> None:
    """A library draws a number at every step."""
    wrap_method(
        torch.nn.utils,
        "clip_grad_norm_",
        lambda clip: lambda *args, **kwargs: (torch.rand(1), clip(*args, **kwargs))[1],
    )


# In the files.


def _pick(read: list[int], seed: int, count: int = 1) -> list[int]:
    return random.Random(seed).sample(sorted(read), count)


def one_word(content: Content, read: list[int], seed: int) -> None:
    """One word of one row is another."""
    content.edit(_pick(read, seed)[0], lambda row: Row(row.text + " indeed", row.label))


def one_character(content: Content, read: list[int], seed: int) -> None:
    """One character of one row is another."""
    content.edit(_pick(read, seed + 9)[0], lambda row: Row(row.text[:4] + "x" + row.text[5:], row.label))


def mojibake(content: Content, read: list[int], seed: int) -> None:
    """Accents were read in another encoding."""
    for row in range(TRAIN_ROWS):
        content.edit(row, lambda one: Row(one.text.encode().decode("latin-1"), one.label))


def row_removed(content: Content, read: list[int], seed: int) -> None:
    """A row is gone."""
    del content.train[random.Random(seed).randrange(TRAIN_ROWS)]


def row_repeated(content: Content, read: list[int], seed: int) -> None:
    """A row stands twice in its shard."""
    at = random.Random(seed).randrange(TRAIN_ROWS)
    content.train.insert(at, content.train[at])


def _flip(row: Row) -> Row:
    return Row(row.text, 1 - (row.label or 0))


def one_label(content: Content, read: list[int], seed: int) -> None:
    """One label is flipped."""
    content.edit(_pick(read, seed)[0], _flip)


def some_labels(content: Content, read: list[int], seed: int) -> None:
    """One label in a hundred is flipped."""
    for row in _pick(read, seed, 3):
        content.edit(row, _flip)


def shards_reordered(content: Content, read: list[int], seed: int) -> None:
    """The manifest lists the shards in reverse."""
    content.reversed_shards = True


def rows_swapped(content: Content, read: list[int], seed: int) -> None:
    """Two rows changed places."""
    a, b = _pick([row for row in read if row < TRAIN_ROWS], seed, 2)
    content.train[a], content.train[b] = content.train[b], content.train[a]


def lower_case(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer lowers case."""
    content.tokenizer["normalizer"]["lowercase"] = True


def accents_stripped(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer strips accents."""
    content.tokenizer["normalizer"]["strip_accents"] = True


def whitespace_kept(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer splits at white space alone."""
    content.tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}


def no_special_tokens(content: Content, read: list[int], seed: int) -> None:
    """No [CLS] and [SEP]."""
    content.tokenizer["post_processor"] = None


def truncated_left(content: Content, read: list[int], seed: int) -> None:
    """Long texts lose their beginning."""
    content.tokenizer["truncation"] = {
        "direction": "Left", "max_length": 32, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip


def padded_left(content: Content, read: list[int], seed: int) -> None:
    """Short texts are padded at their beginning."""
    content.tokenizer["padding"] = {
        "strategy": {"Fixed": 32}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    }  # fmt: skip


def unmerged_word(content: Content, read: list[int], seed: int) -> None:
    """One frequent word is no longer one token."""
    vocabulary = content.tokenizer["model"]["vocab"]
    texts = " ".join(row.text for row in content.train)
    words = [word for word in vocabulary if len(word) > 3 and word.isalpha() and texts.count(f" {word} ") > 20]
    word = sorted(words)[seed % len(words)]
    vocabulary[f"{word}\u00b7"] = vocabulary.pop(word)
