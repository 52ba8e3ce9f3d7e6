"""Digests of native operations at the shapes and settings of a training.

Which kernels a machine takes, and how they round, follows from processor, GPU, libraries, threads and variables in
ways that nobody can list. So the operations are executed: on inputs that are the same bits everywhere, by torch's own
functions, never by the model's or the trainer's code, whose faults would otherwise excuse themselves. Equal digests
show equal rounding.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import NativeOperation
from plumbline.schema.sketch import small_sketch
from plumbline.train.compat.transformers import attention_of
from plumbline.train.digests import digest_tensors, host_array
from plumbline.train.engine import Engine
from plumbline.train.numerics import autocast

Tensors = dict[str, torch.Tensor]
Computed = tuple[torch.Tensor, Tensors]
"""An operation's result, and its inputs by name."""
_MOST_SAMPLES = 4096
_REDUCED = 1 << 18
"""Number of elements that processes add up."""
_MOST_TABLE = 1 << 13
"""Maximum number of rows of an embedding table, whose other rows an update leaves alone."""
_IGNORED = -100
_COARSE = ("bf16", "fp16")
_LEAST_VALUES, _MOST_TURNS, _SALTS_OF_A_TURN = 1 << 14, 8, 1000
"""A coarse result of few values is computed for several inputs: it hides most differences of the sums inside."""
_NEVER = 2.0**-30
"""Rate of dropout that drops nothing; a library chooses other kernels for it than without dropout."""
_WITH_DROPOUT = "attention with dropout"


def _hashed(shape: tuple[int, ...], salt: int, device: torch.device) -> torch.Tensor:
    """Return pseudo-random 24-bit integers, equal on every device."""
    place = torch.arange(math.prod(shape), dtype=torch.int64, device=device) + salt * 0x9E3779B1
    mixed = place * 0x5851F42D4C957F2D
    mixed = (mixed ^ (mixed >> 29)) * 0x2545F4914F6CDD1D
    return ((mixed >> 33) & 0xFFFFFF).reshape(shape)


def _values(shape: tuple[int, ...], salt: int, device: torch.device, scale: float = 1.0) -> torch.Tensor:
    """Return reproducible fp32 values in [-1, 1), scaled by about `scale`."""
    exact = 2.0 ** round(math.log2(scale))
    values = _hashed(shape, salt, device).float() / 2**23 - 1.0
    return (values * exact).requires_grad_()


def layer_shapes(model: nn.Module) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Return the distinct shapes of linear, normalisation and embedding layers, by name."""
    linear: dict[str, tuple[int, ...]] = {}
    norm: dict[str, tuple[int, ...]] = {}
    table: dict[str, tuple[int, ...]] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            linear[f"{module.in_features}x{module.out_features}"] = (module.in_features, module.out_features)
        elif isinstance(module, nn.LayerNorm):
            norm["x".join(map(str, module.normalized_shape))] = tuple(module.normalized_shape)
        elif isinstance(module, nn.Embedding):
            table[f"{module.num_embeddings}x{module.embedding_dim}"] = (module.num_embeddings, module.embedding_dim)
    return linear, norm, table


@dataclass(frozen=True)
class _Batch:
    """Differentiable training operations on batches of `rows` rows."""

    engine: Engine
    rows: int
    turn: int = 0

    @property
    def _device(self) -> torch.device:
        return self.engine.ranks.device

    @property
    def _length(self) -> int:
        return self.engine.spec.data.sequence_length

    @property
    def _classes(self) -> int:
        """Return the number of label classes, per row or token."""
        spec = self.engine.spec
        return (spec.model.num_labels or 2) if spec.has_row_labels else spec.model.vocab_size

    def _values(self, *shape: int, salt: int = 1, scale: float = 1.0) -> torch.Tensor:
        return _values(shape, salt + _SALTS_OF_A_TURN * self.turn, self._device, scale)

    def named(self) -> Iterator[tuple[str, Callable[[], Computed]]]:
        """Yield (name, function) of each operation."""
        model, tokens = self.engine.spec.model, (self.rows, self._length)
        linear, norm, table = layer_shapes(self.engine.bare)
        for name, (width, out) in linear.items():
            yield f"linear {name}", partial(self._linear, tokens, width, out)
            if self.engine.spec.has_row_labels or out != self._classes:
                yield f"linear {name} of sequences", partial(self._linear, (self.rows,), width, out)
        for name, shape in norm.items():
            yield f"layer_norm {name}", partial(self._norm, shape)
        for name, (num, width) in table.items():
            yield f"embedding {name}", partial(self._table, num, width)
        scores = (self.rows, model.num_attention_heads, self._length, self._length)
        yield "gelu", partial(self._elements, nn.functional.gelu, *tokens, model.intermediate_size)
        yield "tanh", partial(self._elements, torch.tanh, self.rows, model.hidden_size)
        yield "softmax", partial(self._elements, partial(nn.functional.softmax, dim=-1, dtype=torch.float32), *scores)
        if self.engine.precision in _COARSE:  # of scores that no mask of fp32 is added to
            yield f"softmax in {self.engine.precision}", partial(self._short_softmax, *scores)
        yield "sum", self._sum
        yield "attention", self._attention
        if attention_of(self.engine.bare) != "eager" and self._drops:
            yield _WITH_DROPOUT, partial(self._attention, _NEVER)
        yield "cross_entropy", self._loss

    def _linear(self, outer: tuple[int, ...], width: int, out: int) -> Computed:
        x, w = self._values(*outer, width), self._values(out, width, salt=2, scale=width**-0.5)
        b = self._values(out, salt=3)
        return nn.functional.linear(x, w, b), {"x": x, "w": w, "b": b}

    def _norm(self, shape: tuple[int, ...]) -> Computed:
        x, w, b = self._values(self.rows, self._length, *shape), self._values(*shape, salt=2), self._values(*shape)
        return nn.functional.layer_norm(x, shape, w, b, 1e-12), {"x": x, "w": w, "b": b}

    def _table(self, num: int, width: int) -> Computed:
        num = min(num, _MOST_TABLE)
        w, ids = self._values(num, width), _hashed((self.rows, self._length), 2, self._device) % num
        return nn.functional.embedding(ids, w), {"w": w}

    @property
    def _short(self) -> torch.dtype:
        """Return the dtype in which linear layers leave their results."""
        kind = self._device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32

    def _elements(self, function: Callable[..., torch.Tensor], *shape: int) -> Computed:
        x = self._values(*shape, scale=4.0)
        return function(x.to(self._short)), {"x": x}

    def _short_softmax(self, *shape: int) -> Computed:
        """Build a softmax whose backward pass subtracts the mean of gradients from gradients close to it.

        Otherwise the result's format hides how the mean was rounded, but for one of some 70,000 values.
        """
        found, inputs = self._elements(partial(nn.functional.softmax, dim=-1), *shape)
        if found.requires_grad:
            found.register_hook(lambda slope: 1 + slope / 32)
        return found, inputs

    def _sum(self) -> Computed:
        """Build a broadcast addition, with a backward pass that sums over rows."""
        width = self.engine.spec.model.hidden_size
        x, y = self._values(self.rows, self._length, width), self._values(1, self._length, width, salt=2)
        return x + y, {"x": x, "y": y}

    @property
    def _drops(self) -> bool:
        return any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.engine.bare.modules())

    def _attention(self, dropout: float = 0.0) -> Computed:
        """Build an attention call like the model's, with padding in most rows."""
        rows, length, model, device = self.rows, self._length, self.engine.spec.model, self._device
        outer = (rows, length, model.num_attention_heads, model.hidden_size // model.num_attention_heads)
        inputs = {name: self._values(*outer, salt=salt) for salt, name in enumerate("qkv", start=4)}
        q, k, v = (value.to(self._short).transpose(1, 2) for value in inputs.values())
        used = torch.arange(length, device=device) <= torch.arange(rows, device=device)[:, None] % length + length // 2
        mask = used[:, None, None, :].expand(rows, 1, length, length)
        if attention_of(self.engine.bare) != "eager":
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout), inputs
        hidden = torch.where(mask, torch.zeros((), device=device), torch.finfo(torch.float32).min)
        scores = torch.matmul(q, k.transpose(2, 3)) * outer[-1] ** -0.5 + hidden
        return torch.matmul(nn.functional.softmax(scores, dim=-1).to(v.dtype), v), inputs

    def _loss(self) -> Computed:
        of_rows = self.engine.spec.has_row_labels
        num = self.rows if of_rows else self.rows * self._length
        logits, labels = self._values(num, self._classes, scale=4.0), _hashed((num,), 2, self._device) % self._classes
        if not of_rows:
            labels = torch.where(_hashed((num,), 3, self._device) % 7 == 0, labels, _IGNORED)
        return nn.functional.cross_entropy(logits, labels, ignore_index=_IGNORED), {"logits": logits}


def _backward(result: torch.Tensor, inputs: Tensors) -> Tensors:
    """Return an operation's output and the gradients of its inputs."""
    if not result.dim():
        result.backward()
    else:
        # In the output's own layout, as in training: torch keeps the plan of cuDNN's attention by the layout of its
        # inputs alone, and would read the training's gradients in the layout that the plan was made for.
        slope = torch.empty_like(result).copy_(_values(tuple(result.shape), 9, result.device).detach())
        result.backward(slope)
    gradients = {name: value.grad for name, value in inputs.items() if value.grad is not None}
    return {"output": result.detach(), **gradients}


def _update(engine: Engine, device: torch.device) -> Tensors:
    """Run gradient clipping and three AdamW updates at the model's shapes."""
    shapes = {
        f"{kind} {name}": shape
        for kind, sizes in zip(("linear", "norm", "table"), layer_shapes(engine.bare), strict=True)
        for name, shape in sizes.items()
    }
    weights = {
        name: nn.Parameter(_values((min(shape[0], _MOST_TABLE), *shape[1:]), 1, device).detach())
        for name, shape in shapes.items()
    }
    group = engine.optimizer.param_groups[0]
    optimizer = torch.optim.AdamW(
        list(weights.values()), lr=0.125, betas=(0.75, 0.875), eps=0.125, weight_decay=0.5,
        fused=group.get("fused"), foreach=None if group.get("fused") else group.get("foreach"),
    )  # fmt: skip
    norms = {}
    for step in range(3):
        for weight in weights.values():
            weight.grad = _values(tuple(weight.shape), 10 + step, device).detach()
        norms[f"norm {step}"] = torch.nn.utils.clip_grad_norm_(list(weights.values()), 8.0).detach()
        optimizer.step()
    return {**{name: weight.detach() for name, weight in weights.items()}, **norms}


def _reduce(engine: Engine, device: torch.device) -> Tensors:
    """All-reduce one tensor over all processes."""
    total = _values((_REDUCED,), 1 + engine.ranks.rank, device).detach()
    dist.all_reduce(total)
    return {"sum": total}


def _measured(name: str, found: Tensors) -> NativeOperation:
    """Return an operation's digest and sketch."""
    samples = []
    for tensor in found.values():
        flat = host_array(tensor).reshape(-1).astype(np.float64)
        flat = flat[:: max(1, flat.size // _MOST_SAMPLES)]
        largest = float(np.abs(flat).max(initial=0.0))
        samples.append(flat * 2.0 ** -math.frexp(largest)[1] if math.isfinite(largest) else np.zeros(1))
    sketch = tuple(map(float, small_sketch(np.concatenate(samples))))
    return NativeOperation(name=name, sha256=digest_tensors(found)[:16], sketch=sketch)


def _micro_rows(engine: Engine) -> int:
    return engine.spec.batch_size // (engine.ranks.world * engine.spec.optimizer.accumulation_steps)


def _forward(engine: Engine, function: Callable[[], Computed]) -> Tensors:
    with torch.no_grad(), autocast(engine.precision, engine.ranks.device):
        return {"output": function()[0]}


def _both(engine: Engine, function: Callable[[], Computed]) -> Tensors:
    with autocast(engine.precision, engine.ranks.device):
        result, inputs = function()
    return _backward(result, inputs)


def _in_turns(
    compute: Callable[[Engine, Callable[[], Computed]], Tensors], engine: Engine, rows: int, name: str
) -> Tensors:
    """Run an operation repeatedly, until its digest covers enough values."""
    found = compute(engine, dict(_Batch(engine, rows).named())[name])
    num_turns = min(_MOST_TURNS, _LEAST_VALUES // found["output"].numel()) if engine.precision in _COARSE else 1
    for turn in range(1, num_turns):
        part = compute(engine, dict(_Batch(engine, rows, turn).named())[name])
        found |= {f"{each} {turn}": value for each, value in part.items()}
    return found


def _operations(engine: Engine, evaluated: tuple[int, ...]) -> Iterator[tuple[str, Callable[[], Tensors]]]:
    """Yield (name, function) of each operation, named with its row count.

    Evaluations may have batches of another size, which go forward only.
    """
    device, micro = engine.ranks.device, _micro_rows(engine)
    for name, _ in _Batch(engine, micro).named():
        yield f"{name}, {micro} rows", partial(_in_turns, _both, engine, micro, name)
    for rows in evaluated:
        for name, _ in _Batch(engine, rows).named():
            if name != _WITH_DROPOUT:
                yield f"{name}, {rows} rows evaluated", partial(_in_turns, _forward, engine, rows, name)
    yield "update", partial(_update, engine, device)
    if engine.ranks.world > 1:
        yield f"reduce, {engine.ranks.world} processes", partial(_reduce, engine, device)


def measure_operations(engine: Engine, evaluation_rows: int, at_once: int) -> tuple[NativeOperation, ...]:
    """Return digest and sketch of each operation, for all processes.

    An operation that this machine cannot compute has none, and excuses nothing.
    """
    evaluated = {min(at_once, evaluation_rows), evaluation_rows % at_once} - {0, _micro_rows(engine)}
    found, devices = [], [engine.ranks.device] if engine.ranks.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        for name, function in _operations(engine, tuple(sorted(evaluated))):
            with contextlib.suppress(RuntimeError, TypeError, ValueError, AttributeError):
                found.append(_measured(name, function()))
    if engine.ranks.world == 1:
        return tuple(found)
    everyone = engine.ranks.gather({operation.name: operation.sha256 for operation in found})
    return tuple(
        operation.replace(sha256=digest_json([digests.get(operation.name) for digests in everyone])[:16])
        for operation in found
    )
