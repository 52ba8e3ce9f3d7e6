"""Dataset and models of the benchmarks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plumbline.data.datasets.build import build_dataset
from plumbline.data.datasets.publish import publish, publish_weights, weights_key
from plumbline.data.datasets.spec import SIZES
from plumbline.data.stores import open_store
from plumbline.schema.manifest import Manifest
from plumbline.schema.spec import DataSpec, ModelSpec, RunSpec
from plumbline.schema.suite import DatasetSource
from plumbline.schema.task import has_row_labels
from plumbline.train.job import TrainJob, open_run
from plumbline.train.weights import make_weights


@dataclass
class Workload:
    """A published dataset, weights, and specs over both."""

    folder: Path
    size: str
    length: int
    layers: int = 0
    """Number of layers, if not that of the size."""
    task: str = "sequence-classification"

    def __post_init__(self) -> None:
        source = DatasetSource(grammar_seed=1, train_rows=2048, evaluation_rows=128, vocab_size=2048)
        self.manifest: Manifest = build_dataset(source, "reviews", self.task, self.folder / "dataset")
        self.url = f"file://{self.folder}/store"
        publish(self.folder / "dataset", open_store(self.url))
        layers, width = SIZES[self.size]
        self.model: dict[str, Any] = {
            "hidden_size": width,
            "num_hidden_layers": self.layers or layers,
            "num_attention_heads": width // 64,
            "intermediate_size": 4 * width,
            "max_position_embeddings": 512,
            "vocab_size": self.manifest.vocab_size,
            **({"num_labels": 2} if has_row_labels(self.task) else {}),
        }
        if self.task == "causal-lm":
            sizes = {"n_embd": width, "n_layer": self.layers or layers, "n_head": width // 64, "n_positions": 512}
            special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
            settings = {**sizes, "n_inner": 4 * width, **special, "vocab_size": self.manifest.vocab_size}
            self.model |= {"family": "gpt2", "type_vocab_size": 1, "settings": settings}
        weights = self.folder / "weights.safetensors"
        self.sha256 = make_weights({**self.model, "task": self.task}, 1, weights)
        publish_weights(weights, open_store(self.url), self.sha256)

    def spec(self, batch_size: int, **parts: Any) -> RunSpec:
        """Return a spec with these parts."""
        return RunSpec(
            workload="bench",
            task=self.task,
            model=ModelSpec(**self.model, weights_key=weights_key(self.sha256), weights_sha256=self.sha256),
            data=DataSpec(name="reviews", manifest_sha256=self.manifest.digest, sequence_length=self.length),
            seed=7,
            batch_size=batch_size,
            **parts,
        )

    def context(self, spec: RunSpec) -> Any:
        """Return the context of the trainer's parts, in this process."""
        job = TrainJob(spec, self.folder / "out", self.url, self.folder / "cache", "bench", "bench")
        return open_run(job, threading.Event())
