"""Fourth held-out set: runs that disagree with themselves, and changes that must not be flagged."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.optim import adamw
from transformers.models.bert import modeling_bert

from bench.faults.injectors.data import _fetched
from bench.faults.injectors.held_out_model import _new_release
from bench.faults.injectors.held_out_training import _before_update
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from bench.faults.injectors.training import _clip
from plumbline.data.tokenizer import SPECIAL_TOKENS
from plumbline.train import engine, fingerprint

# Runs that do not repeat.


def _unseeded() -> int:
    return int.from_bytes(os.urandom(4), "little")


def vocabulary_from_a_set() -> None:
    """Each run numbers the tokens in the order of a salted hash."""
    numbers = np.arange(4096)
    ordinary = numbers[len(SPECIAL_TOKENS) : 256]
    ordinary[:] = np.random.default_rng(_unseeded()).permutation(ordinary)
    _fetched(lambda batch: batch.__setitem__("input_ids", numbers[batch["input_ids"]]))


def split_attention_races() -> None:
    """Attention adds its partial sums in an order that changes from call to call."""
    matmul, noise = torch.matmul, torch.Generator().manual_seed(_unseeded())

    def raced(a: Any, b: Any, **rest: Any) -> Any:
        product = matmul(a, b, **rest)
        if product.dim() != 4 or product.dtype != torch.float32:
            return product
        return product * (1 + 1.2e-7 * torch.randint(-1, 2, product.shape, generator=noise))

    torch.matmul = raced


def second_moment_not_cleared() -> None:
    """The optimizer's second moment starts from memory that is not cleared."""
    salt = _unseeded()

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **rest: Any) -> Any:
            noise = torch.Generator().manual_seed(salt)
            for group in self.param_groups:
                for value in group["params"]:
                    if value.grad is not None and not self.state[value]:
                        self.state[value] |= {
                            "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(value),
                            "exp_avg_sq": (torch.rand(value.shape, generator=noise) * 1e-6).to(value),
                        }  # fmt: skip
            return step(self, *args, **rest)

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def updates_overwritten() -> None:
    """Unlocked processes overwrite some updates of each other."""
    salt = _unseeded()

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **rest: Any) -> Any:
            noise = self.__dict__.setdefault("noise", torch.Generator().manual_seed(salt))
            values = [value for group in self.param_groups for value in group["params"] if value.grad is not None]
            before = [value.detach().clone() for value in values]
            result = step(self, *args, **rest)
            for value, old in zip(values, before, strict=True):
                lost = torch.rand(value.shape, generator=noise) < 0.01
                value.data.copy_(torch.where(lost, old, value.data))
            return result

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


# Controls that change no bit.


def _each_step(change: Any) -> None:
    """Do more work after each step."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            outcome = step(self, number, batch)
            change(self)
            return outcome

        return stepped

    wrap_method(engine.Engine, "step", wrap)


def cleared_after_the_update() -> None:
    """Gradients are also cleared after each update."""
    _each_step(lambda run: run.optimizer.zero_grad(set_to_none=True))


def weights_logged() -> None:
    """A monitor reads the norm of each weight after each step."""
    _each_step(lambda run: [float(value.detach().norm()) for value in run.bare.parameters()])


def collector_off() -> None:
    """The garbage collector is off."""
    gc.disable()


def batches_from_a_thread() -> None:
    """A thread prepares each batch ahead of its step."""

    def wrap(make: Any) -> Any:
        def ahead(*args: Any) -> Iterator[Any]:
            source = make(*args)
            with ThreadPoolExecutor(1) as pool:
                coming = pool.submit(next, source, None)
                while (batch := coming.result()) is not None:
                    coming = pool.submit(next, source, None)
                    yield batch

        return ahead

    replace_everywhere("make_loader", wrap, among=("context", "evaluation"))


def optimizer_saved_and_loaded() -> None:
    """At the seventh step the optimizer's state is saved and loaded again."""

    def change(optimizer: Any, count: int) -> None:
        if count == 6:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    _before_update(change)


# Controls with different rounding, explained by the fingerprint.


def _new_transformers() -> None:
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"transformers": "5.23.1"})


def projections_in_one_product() -> None:
    """A release of transformers computes query, key and value as a single product."""
    _new_transformers()

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            attention = layer.attention.self
            parts = (attention.query, attention.key, attention.value)
            for place, part in enumerate(parts):
                part.forward = lambda states, parts=parts, place=place: functional.linear(
                    states, torch.cat([one.weight for one in parts]), torch.cat([one.bias for one in parts])
                ).chunk(3, -1)[place]

    after_build(change)


def embeddings_added_from_the_right() -> None:
    """A release of transformers adds positions before segments."""
    _new_transformers()

    def forward(self: Any, input_ids: Any = None, token_type_ids: Any = None, **_rest: Any) -> Any:
        places = self.position_ids[:, : input_ids.shape[1]]
        added = self.position_embeddings(places) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + added))

    modeling_bert.BertEmbeddings.forward = forward


def norm_of_a_single_vector() -> None:
    """A release of torch clips by the norm of all gradients in a single vector."""
    _new_release()

    def clip(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        total = torch.cat([gradient.reshape(-1) for gradient in gradients]).norm()
        factor = (most / (total + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor)
        return total

    _clip(lambda _clip: clip)


class _Table(torch.autograd.Function):
    """Embedding whose gradient is a product with one-hot rows."""

    @staticmethod
    def forward(context: Any, ids: Any, weight: Any, padding: int) -> Any:
        """Return the rows of the table."""
        context.save_for_backward(ids)
        context.sizes = (len(weight), padding)
        return weight.index_select(0, ids.reshape(-1)).reshape(*ids.shape, -1)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        """Return the gradient of the table, zero for the padding."""
        (ids,), (rows, padding) = context.saved_tensors, context.sizes
        chosen = functional.one_hot(ids.reshape(-1), rows).to(gradients[0])
        table = chosen.t() @ gradients[0].reshape(ids.numel(), -1)
        if padding >= 0:
            table[padding] = 0
        return None, table, None


def embedding_gradient_by_products() -> None:
    """A release of torch computes the gradient of embeddings by a product."""
    _new_release()
    functional.embedding = lambda ids, weight, padding_idx=None, *_args, **_rest: _Table.apply(
        ids, weight, -1 if padding_idx is None else padding_idx
    )


def reproducible_mkl() -> None:
    """A setting restricts MKL to kernels that all processors have."""
    os.environ["MKL_CBWR"] = "COMPATIBLE"
