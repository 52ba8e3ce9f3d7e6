"""Memory and copies of a training on the fake device, counted by operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from plumbline.schema.spec import ModelSpec, RunSpec
from plumbline.train.batches import Batch
from plumbline.train.ranks import Ranks

DEVICE = torch.device("meta")


class Counted(TorchDispatchMode):
    """Bytes on the device, now and at most, and bytes copied from it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._live: dict[int, tuple[Any, int]] = {}
        self._now = self.peak = self.copied = self.copies = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        source = args[1] if name == "copy_" else args[0] if args else None
        is_copy = name in {"_to_copy", "copy_"} and isinstance(source, torch.Tensor) and source.device == DEVICE
        if is_copy and result.device != DEVICE:
            self.copied, self.copies = self.copied + result.numel() * result.element_size(), self.copies + 1
        self._see(result)
        if self._now > self.peak:
            self._sweep()
            self.peak = max(self.peak, self._now)
        return result

    def _see(self, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for each in value:
                self._see(each)
        elif isinstance(value, torch.Tensor) and value.device == DEVICE:
            storage = value.untyped_storage()
            known = self._live.get(storage._cdata)
            if known is not None and known[0].expired():
                self._now -= known[1]
            if known is None or known[0].expired():
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
                self._now += storage.nbytes()

    def _sweep(self) -> None:
        for key in [key for key, (reference, _) in self._live.items() if reference.expired()]:
            self._now -= self._live.pop(key)[1]


@dataclass
class Drawn:
    """Rows without a store, and no weights, for a part on the fake device."""

    spec: RunSpec
    ranks: Ranks = field(default_factory=lambda: Ranks(device=DEVICE))
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    draw: str = ""

    def batches(self, *, first: int, count: int, cycle: int | None = None) -> Iterator[Batch]:  # noqa: ARG002
        rows, length = self.spec.batch_size, self.spec.data.sequence_length
        for _ in range(count):
            fields = ("input_ids", "attention_mask", "token_type_ids")
            batch = {name: torch.from_numpy(np.ones((rows, length), np.int64)) for name in fields}
            yield {**batch, "row_ids": torch.arange(rows), "labels": torch.zeros(rows, dtype=torch.int64)}

    def release(self) -> None:
        """Do nothing."""

    def note(self, part: str, settings: dict[str, Any]) -> None:
        """Do nothing."""

    def measure(self, part: str, engine: Any, evaluation_rows: int = 0, at_once: int = 0) -> None:
        """Do nothing: what is counted are the part's own steps."""


def sized(size: str, *, layers: int, length: int, batch_size: int, vocabulary: int = 1000, **parts: Any) -> RunSpec:
    """Return a spec of the shape of BERT-base or BERT-large, with fewer layers."""
    width, heads = {"base": (768, 12), "large": (1024, 16)}[size]
    model = ModelSpec(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * width,
        max_position_embeddings=512, vocab_size=vocabulary, num_labels=2, weights_key="drawn", weights_sha256="0" * 64,
    )  # fmt: skip
    return RunSpec.model_validate({
        "workload": "counted", "task": "sequence-classification", "model": model, "seed": 1, "batch_size": batch_size,
        "data": {"name": "drawn", "manifest_sha256": "0" * 64, "sequence_length": length}, **parts,
    })  # fmt: skip
