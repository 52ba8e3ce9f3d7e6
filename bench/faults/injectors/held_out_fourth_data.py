"""Fourth held-out set: faults of files, batches and tokens.

Each docstring names the public report that the fault follows, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.faults.injectors.data import _fetched, _positions
from bench.faults.injectors.held_out_data import _Passing, _tokenizer
from bench.faults.injectors.patching import wrap_method
from bench.faults.world import BATCH, EVALUATION_ROWS, STEPS, TRAIN_ROWS, Content
from plumbline.data.rows import Row
from plumbline.data.tokenizer import SPECIAL_TOKENS
from plumbline.staging import order
from plumbline.train import batches

# Files.


def _texts(content: Content, rows: range, change: Callable[[str], str]) -> None:
    for row in rows:
        content.edit(row, lambda old: Row(change(old.text), old.label))


def texts_cut_by_a_column(content: Content, read: list[int], seed: int) -> None:
    """A database column keeps the first 60 characters of each text."""
    _texts(content, range(TRAIN_ROWS), lambda text: text[:60])


def texts_read_as_missing(content: Content, read: list[int], seed: int) -> None:
    """A table reader turns every tenth text into the word nan."""
    _texts(content, range(0, TRAIN_ROWS, 10), lambda _: "nan")


def characters_outside_ascii_dropped(content: Content, read: list[int], seed: int) -> None:
    """An export drops every character outside ASCII."""
    _texts(content, range(TRAIN_ROWS), lambda text: text.encode("ascii", "ignore").decode())


def texts_cut_at_the_comma(content: Content, read: list[int], seed: int) -> None:
    """A CSV reader cuts each text at its first comma."""
    _texts(content, range(TRAIN_ROWS), lambda text: text.partition(",")[0])


def evaluation_texts_of_an_older_release(content: Content, read: list[int], seed: int) -> None:
    """Every fourth evaluation text lacks its last word."""
    rows = range(TRAIN_ROWS, TRAIN_ROWS + EVALUATION_ROWS, 4)
    _texts(content, rows, lambda text: text.rpartition(" ")[0])


def label_column_sorted(content: Content, read: list[int], seed: int) -> None:
    """The label column is sorted, the text column is not."""
    labels = sorted(row.label or 0 for row in content.train)
    content.train[:] = [Row(row.text, label) for row, label in zip(content.train, labels, strict=True)]


def evaluation_labels_inverted(content: Content, read: list[int], seed: int) -> None:
    """The evaluation split numbers its two classes the other way."""
    content.evaluation[:] = [Row(row.text, 1 - (row.label or 0)) for row in content.evaluation]


def chinese_characters_not_split(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer keeps neighbouring Chinese characters together."""
    content.tokenizer["normalizer"]["handle_chinese_chars"] = False


def first_token_twice(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer adds [CLS] twice (ggml-org/llama.cpp#7107)."""
    template = content.tokenizer["post_processor"]["single"]
    template.insert(0, template[0])


def added_token_splits_words(content: Content, read: list[int], seed: int) -> None:
    """An added token matches inside longer words (huggingface/tokenizers#672)."""
    vocabulary = content.tokenizer["model"]["vocab"]
    words = [word for row in content.train for word in row.text.split() if len(word) > 3]
    short = sorted(token for token in vocabulary if len(token) == 2 and token.isalpha() and token.isascii())
    token = max(short, key=lambda item: sum(item in word for word in words))
    content.tokenizer["added_tokens"].append({
        "id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": False,
    })  # fmt: skip


def continuation_prefix_lost(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer looks up word continuations without their prefix."""
    content.tokenizer["model"]["continuing_subword_prefix"] = ""


def digits_split(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer splits numbers into single digits."""
    digits = {"type": "Digits", "individual_digits": True}
    content.tokenizer["pre_tokenizer"] = {
        "type": "Sequence", "pretokenizers": [content.tokenizer["pre_tokenizer"], digits],
    }  # fmt: skip


# Batches.


def labels_of_the_batch_before() -> None:
    """Each batch carries the labels of the batch before it."""

    def wrap(get: Any) -> Any:
        def fetched(self: Any, positions: list[int]) -> Any:
            batch = get(self, positions)
            batch["labels"] = get(self, [place - BATCH * (place >= BATCH) for place in positions])["labels"]
            return batch

        return fetched

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def shuffled_in_a_buffer() -> None:
    """Rows pass a shuffle buffer of 16 rows, as a stream does."""

    def wrap(shuffled: Any) -> Any:
        def buffered(count: int, *what: object) -> Any:
            if what[0] != "rows":
                return shuffled(count, *what)
            kept, rows = list(range(16)), []
            for place, key in enumerate(order.random_keys(count, *what).tolist()):
                slot = key % len(kept)
                rows.append(kept.pop(slot))
                if place + 16 < count:
                    kept.insert(slot, place + 16)
            return np.array(rows, dtype=np.int64)

        return buffered

    wrap_method(order, "_shuffled", wrap)


def grouped_by_length() -> None:
    """Rows are sorted by length within every four batches (transformers' group_by_length)."""
    window = 4 * BATCH

    def wrap(get: Any) -> Any:
        def grouped(self: Any, positions: list[int]) -> Any:
            start = positions[0] // window * window
            lengths = get(self, list(range(start, start + window)))["attention_mask"].sum(1)
            places = start + np.argsort(-lengths, kind="stable")
            return get(self, places[np.asarray(positions) - start].tolist())

        return grouped

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def shards_interleaved() -> None:
    """Rows alternate between the shards."""
    wrap_method(
        order.Order,
        "_epoch",
        lambda epoch: lambda self, number: epoch(self, number).reshape(len(self._sizes), -1).T.reshape(-1),
    )


def processes_take_contiguous_halves() -> None:
    """Each of two processes reads its own half of the order."""
    half = BATCH // 2
    _positions(
        lambda positions: [
            place // BATCH * half + place % half + (STEPS * half if place % BATCH >= half else 0) for place in positions
        ]
    )


def separator_cut_off() -> None:
    """Long texts are cut after [SEP] is added, and lose it."""

    class Piece:
        def __init__(self, whole: Any, length: int) -> None:
            self.ids, self.attention_mask = whole.ids[:length], whole.attention_mask[:length]
            self.type_ids = whole.type_ids[:length]

    class Cut(_Passing):
        def enable_truncation(self, length: int, **_rest: Any) -> None:
            self._length = length

        def encode_batch(self, texts: list[str]) -> Any:
            return [Piece(whole, self._length) for whole in self._inner.encode_batch(texts)]

    _tokenizer(Cut)


def ids_in_eight_bits() -> None:
    """Token numbers pass an integer type of eight bits and wrap."""
    _fetched(lambda batch: batch["input_ids"].__imod__(256))


def special_tokens_masked() -> None:
    """The attention mask hides [CLS], [SEP] and unknown tokens."""

    def change(batch: Any) -> None:
        batch["attention_mask"] = (batch["input_ids"] >= len(SPECIAL_TOKENS)).astype(np.int64)

    _fetched(change)
