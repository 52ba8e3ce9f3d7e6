"""Faults of what a probe reads: rows, labels, order, tokens and generators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import fetched, positions
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from bench.faults.world import BATCH
from plumbline.data.staging import order
from plumbline.train import engine, rows
from plumbline.train.tasks import masked_lm


@fault("data.order")
def order_seed() -> None:
    """Rows are shuffled with another seed."""
    wrap_method(
        order.Order,
        "__init__",
        lambda init: lambda self, manifest, seed, recipe: init(self, manifest, seed + 1, recipe),
    )


@fault("tokenization")
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


@fault("rng")
def hidden_dropout_on() -> None:
    """Dropout of the hidden layers alone stays on."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.output.dropout.p = 0.1

    after_build(change)


@fault("data.labels")
def labels_popped_from_the_end() -> None:
    """A collation takes the labels of each batch from the end of a list."""
    fetched(lambda batch: batch.__setitem__("labels", np.ascontiguousarray(batch["labels"][::-1])))


def _before_step(change: Any) -> None:
    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            change(self, number)
            return step(self, number, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)


@fault("rng")
def plugin_seeds_torch_at_step_two() -> None:
    """A plugin that starts late seeds torch's generator with 0 at the third step."""
    _before_step(lambda _run, number: torch.manual_seed(0) if number == 2 else None)


@fault("data.content")
def texts_edited_when_read() -> None:
    """Every third text loses its first word as it is read; the files and their list stay as they are."""

    def wrap(read: Any) -> Any:
        def edited(path: Any, shard: Any, columns: Any, wanted: Any) -> Any:
            found = read(path, shard, columns, wanted)
            place = columns.index("text")
            texts = found[place]
            found[place] = [" ".join(t.split(" ")[1:]) if n % 3 == 0 else t for n, t in enumerate(texts)]
            return found

        return edited

    wrap_method(rows, "_read_columns", wrap)


@fault("rng", "mlm")
def every_row_hides_the_same_places() -> None:
    """The hidden places are drawn once for all rows."""
    wrap_method(
        masked_lm,
        "random_keys",
        lambda keys: lambda count, *parts: keys(count, *(parts[:2] if parts[0] == "mask" else parts)),
    )


@fault("data.order")
def batch_skipped() -> None:
    """A restart at the seventh batch skips one."""
    positions(lambda positions: [place + BATCH * (place >= 6 * BATCH) for place in positions])


@fault("tokenization")
def second_segment() -> None:
    """Every token is called one of a second segment."""
    fetched(lambda batch: batch["token_type_ids"].fill(1))


@fault("rng")
def dropout_of_the_embeddings() -> None:
    """Dropout of the embeddings stays on."""
    after_build(lambda model: setattr(model.bert.embeddings.dropout, "p", 0.1))


@fault("data.labels")
def labels_of_neighbours() -> None:
    """The first two rows of each batch have each other's labels."""

    def change(batch: Any) -> None:
        batch["labels"][:2] = batch["labels"][:2][::-1].copy()

    fetched(change)


@fault("tokenization")
def mask_reversed() -> None:
    """The attention mask is built for padding on the left."""
    fetched(lambda batch: batch.__setitem__("attention_mask", np.ascontiguousarray(batch["attention_mask"][:, ::-1])))


@fault("rng")
def attention_dropout_on() -> None:
    """Only the attention's weights are dropped."""
    drop = functional.dropout

    def dropped(value: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return drop(value, 0.1 if training and value.dim() == 4 else p, training, inplace)

    functional.dropout = dropped


def _set(field: str, change: Callable[[Any], Any]) -> None:
    fetched(lambda batch: batch.__setitem__(field, change(batch)))


@fault("rng", "mlm")
def hidden_places_shifted() -> None:
    """In masked language modelling, labels stand one place later than the tokens that were hidden."""
    _set("labels", lambda batch: np.roll(batch["labels"], 1, axis=1))


@fault("rng")
def dropout_from_step_three() -> None:
    """From the fourth step on a callback leaves dropout on."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            for module in self.bare.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.1 if number >= 3 else 0.0
            return step(self, number, batch)

        return stepped

    wrap_method(engine.Engine, "step", wrap)
