"""Faults of what a probe reads: rows, labels, order, tokens and generators."""

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

from bench.faults.catalogue import fault
from bench.faults.injectors.hooks import after_build, fetched, positions
from bench.faults.injectors.patching import by, patch, replaces
from bench.faults.world import BATCH
from plumbline.data.staging import order
from plumbline.train import rows
from plumbline.train.engine import Engine
from plumbline.train.tasks import masked_lm


@fault("data.order")
def order_seed():
    """Rows are shuffled with another seed."""
    patch(order.Order, "__init__", lambda plain, self, manifest, seed, recipe: plain(self, manifest, seed + 1, recipe))


class _Wrong:
    """Encoding that has lost its third token."""

    def __init__(self, encoding):
        self.ids = [*encoding.ids[:3], *encoding.ids[4:], 0]
        self.attention_mask, self.type_ids = encoding.attention_mask, encoding.type_ids


class _Tokenizer:
    """Tokenizer that loses the third token of some texts."""

    def __init__(self, content):
        self._inner = Tokenizer.from_buffer(content)

    from_buffer = classmethod(lambda cls, content: cls(content))

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def encode_batch(self, texts):
        found = self._inner.encode_batch(texts)
        return [_Wrong(each) if len(text) % 3 == 0 else each for each, text in zip(found, texts, strict=True)]


@fault("tokenization")
def encoder_bug():
    """A tokenizers release that loses the third token of some texts."""
    rows.Tokenizer = _Tokenizer


@fault("rng")
@by(after_build)
def hidden_dropout_on(model):
    """Dropout of the hidden layers alone stays on."""
    for layer in model.bert.encoder.layer:
        layer.output.dropout.p = 0.1


def _set(field, change):
    """Replace a field of each encoded batch by `change(field)`."""
    fetched(lambda batch: batch.__setitem__(field, change(batch[field])))


@fault("data.labels")
def labels_popped_from_the_end():
    """A collation takes the labels of each batch from the end of a list."""
    _set("labels", lambda labels: np.ascontiguousarray(labels[::-1]))


@fault("rng")
@replaces(Engine, "step")
def plugin_seeds_torch_at_step_two(plain, self, number, batch):
    """A plugin that starts late seeds torch's generator with 0 at the third step."""
    if number == 2:
        torch.manual_seed(0)
    return plain(self, number, batch)


@fault("data.content")
@replaces(rows, "_read_columns")
def texts_edited_when_read(plain, path, shard, columns, wanted):
    """Every third text loses its first word as it is read; the files and their list stay as they are."""
    found, place = plain(path, shard, columns, wanted), columns.index("text")
    found[place] = [" ".join(t.split(" ")[1:]) if n % 3 == 0 else t for n, t in enumerate(found[place])]
    return found


@fault("rng", "mlm")
@replaces(masked_lm, "random_keys")
def every_row_hides_the_same_places(plain, count, *parts):
    """The hidden places are drawn once for all rows."""
    return plain(count, *(parts[:2] if parts[0] == "mask" else parts))


@fault("data.order")
def batch_skipped():
    """A restart at the seventh batch skips one."""
    positions(lambda places: [place + BATCH * (place >= 6 * BATCH) for place in places])


@fault("tokenization")
def second_segment():
    """Every token is called one of a second segment."""
    fetched(lambda batch: batch["token_type_ids"].fill(1))


@fault("rng")
def dropout_of_the_embeddings():
    """Dropout of the embeddings stays on."""
    after_build(lambda model: setattr(model.bert.embeddings.dropout, "p", 0.1))


@fault("data.labels")
@by(fetched)
def labels_of_neighbours(batch):
    """The first two rows of each batch have each other's labels."""
    batch["labels"][:2] = batch["labels"][:2][::-1].copy()


@fault("tokenization")
def mask_reversed():
    """The attention mask is built for padding on the left."""
    _set("attention_mask", lambda mask: np.ascontiguousarray(mask[:, ::-1]))


@fault("rng")
@replaces(functional, "dropout")
def attention_dropout_on(plain, value, p=0.5, training=True, inplace=False):
    """Only the attention's weights are dropped."""
    return plain(value, 0.1 if training and value.dim() == 4 else p, training, inplace)


@fault("rng", "mlm")
def hidden_places_shifted():
    """In masked language modelling, labels stand one place later than the tokens that were hidden."""
    _set("labels", lambda labels: np.roll(labels, 1, axis=1))


@fault("rng")
@replaces(Engine, "step")
def dropout_from_step_three(plain, self, number, batch):
    """From the fourth step on a callback leaves dropout on."""
    for module in self.bare.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1 if number >= 3 else 0.0
    return plain(self, number, batch)
