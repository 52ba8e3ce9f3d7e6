"""Self-check of the learning run, by a tiny BERT.

Rows are written as a dataset, staged, tokenized, trained on with dropout, and evaluated by `LearnRun`. The right result
is known without any run: the labels of each batch and of the evaluation, the tokens, and an accuracy of almost 1. So it
shows a fault that all platforms share. It runs once for each lock and release.
"""

from __future__ import annotations

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.data.datasets.rows import Row
from plumbline.data.datasets.shards import store_bytes, write_shards
from plumbline.data.datasets.tokenizer import SPECIAL_TOKENS, word_tokenizer
from plumbline.data.staging.order import plan_rows, planned_files, random_keys
from plumbline.schema.digest import canonical_json, digest_json
from plumbline.schema.manifest import Manifest
from plumbline.schema.sketch import mark
from plumbline.schema.spec import LearnSpec, OptimizerSpec, RunSpec
from plumbline.train.context import Context
from plumbline.train.learn import LearnRun
from plumbline.train.machine.fingerprint import read_fingerprint
from plumbline.train.models.model import read_weights
from plumbline.train.ranks import Ranks
from plumbline.train.rows import Rows
from plumbline.train.source import open_source
from plumbline.train.weights import make_weights

_CLASSES = (("bad", "dim", "dull", "poor", "rough", "slow", "weak", "worn"),
            ("bold", "clear", "fast", "fine", "good", "neat", "solid", "warm"))  # fmt: skip
_PLAIN = ("and", "box", "day", "it", "lid", "one", "the", "was")
_WORDS = 6
"""Number of words of a row, half of them of its class."""
_TRAIN_ROWS, _EVALUATION_ROWS, _BATCH, _LENGTH, _STEPS = 128, 64, 16, 12, 60
_LEAST = 0.95
"""Minimum accuracy. The task is learned without an error at every instruction set and precision that was tried."""


def _rows() -> list[Row]:
    """Return generated rows, with words and labels from a hash."""
    rows = []
    for place in range(_TRAIN_ROWS + _EVALUATION_ROWS):
        keys = [int(key) for key in random_keys(_WORDS + 1, "selfcheck-learn", place)]
        label = keys[-1] % 2
        words = [(_CLASSES[label] if at % 2 else _PLAIN)[key % 8] for at, key in enumerate(keys[:-1])]
        rows.append(Row(" ".join(words), label))
    return rows


def _publish(folder: Path, rows: list[Row]) -> tuple[Manifest, dict[str, int]]:
    vocabulary = {word: place for place, word in enumerate((*SPECIAL_TOKENS, *_PLAIN, *_CLASSES[0], *_CLASSES[1]))}
    manifest = Manifest(
        name="selfcheck", task="sequence-classification", num_labels=2, vocab_size=len(vocabulary),
        tokenizer=store_bytes(folder / "selfcheck", "tokenizer", ".json", word_tokenizer(vocabulary)),
        train=tuple(write_shards(folder / "selfcheck", "train", rows[:_TRAIN_ROWS], 0, 64)),
        evaluation=tuple(write_shards(folder / "selfcheck", "evaluation", rows[_TRAIN_ROWS:], _TRAIN_ROWS, 64)),
    )  # fmt: skip
    (folder / "selfcheck" / "manifest.json").write_bytes(canonical_json(manifest.to_json()))
    return manifest, vocabulary


def _spec(folder: Path, manifest: Manifest) -> RunSpec:
    model: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": _LENGTH, "vocab_size": manifest.vocab_size, "num_labels": 2,
    }  # fmt: skip
    key = "weights/selfcheck.safetensors"
    sha256 = make_weights(model, 1, folder / key)
    return RunSpec(
        workload="selfcheck", task="sequence-classification", seed=1, batch_size=_BATCH,
        model={**model, "weights_key": key, "weights_sha256": sha256},
        data={"name": manifest.name, "manifest_sha256": manifest.digest, "sequence_length": _LENGTH},
        optimizer=OptimizerSpec(learning_rate=2e-3),
        learn=LearnSpec(
            steps=_STEPS, evaluate_every=_STEPS, checkpoint_every=_STEPS, evaluation_rows=_EVALUATION_ROWS
        ),
    )  # fmt: skip


class _Quiet(Context):
    """Training context that emits no progress events."""

    def emit(self, part: str, step: int, steps: int, *, stopping: bool | None = None) -> None:
        """Do nothing."""


def learn_difference(device: torch.device) -> str:
    """Train the tiny BERT; return the first unexpected value, or ""."""
    with tempfile.TemporaryDirectory(prefix="plumbline-selfcheck-") as root:
        folder, rows = Path(root), _rows()
        manifest, vocabulary = _publish(folder, rows)
        spec = _spec(folder, manifest)
        with open_source(spec, f"file://{folder}", folder / "cache") as source:
            plan = plan_rows(spec, source.manifest)
            source.start(planned_files(plan, source.manifest))
            weights = read_weights(source.fetch(spec.model.weights_key, spec.model.weights_sha256), "weights")
            context = _Quiet(
                spec, Ranks(device=device), folder, plan, Rows(spec, source, plan.wanted), weights, threading.Event(),
                is_checked=False,
            )  # fmt: skip
            assert spec.learn is not None  # noqa: S101 - just made
            run = LearnRun(context, spec.learn)
            run.run()
            order = plan.order.rows(np.arange(_STEPS * _BATCH))
        return next(_differences(run, rows, order, vocabulary), "")


def learn_difference_once(ranks: Ranks, cache: Path) -> str:
    """Run the learning self-check once per installation, cached on disk."""
    here = read_fingerprint(ranks, {}, {}).to_json()
    names = ("plumbline", "python", "packages", "cpu", "gpus", "driver", "environment")
    passed = cache / "selfcheck" / digest_json([here[name] for name in names])
    if passed.is_file():
        return ""
    found = learn_difference(ranks.device)
    if not found:
        with contextlib.suppress(OSError):
            passed.parent.mkdir(parents=True, exist_ok=True)
            passed.touch()
    return found


def _differences(run: LearnRun, rows: list[Row], order: NDArray[np.int64], vocabulary: dict[str, int]) -> Iterator[str]:
    curve = run.evidence()
    labels = np.array([row.label for row in rows], np.int64)
    trained = tuple(mark(labels[batch]) for batch in order.reshape(_STEPS, _BATCH))
    if curve is None or len(curve.evaluations) != 1:
        yield "learn: no evaluation"
        return
    if (fed := curve.batches.get("labels", ())) != trained:
        both = enumerate(zip(trained, fed, strict=False))
        step = next((at for at, (known, given) in both if known != given), 0)
        yield f"learn: the labels of step {step} are not those of its rows"
    found, evaluated = curve.evaluations[0], run.evaluation
    if not np.array_equal(evaluated["row_ids"], np.arange(_TRAIN_ROWS, len(rows))) or found.training_mode:
        yield "evaluation: different rows, or in training mode"
    elif not np.array_equal(evaluated["labels"], labels[_TRAIN_ROWS:]):
        yield "evaluation: different labels"
    elif not np.array_equal(evaluated["inputs"][:, 0], _ids(rows[_TRAIN_ROWS:], vocabulary)):
        yield "evaluation: different tokens"
    elif found.accuracy is None or found.accuracy < _LEAST:
        yield f"evaluation: an accuracy of {found.accuracy} instead of at least {_LEAST}, of a task that can be learned"


def _ids(rows: list[Row], vocabulary: dict[str, int]) -> NDArray[np.int64]:
    """Tokenize rows as [CLS], words, [SEP], and padding."""
    ids = np.full((len(rows), _LENGTH), vocabulary["[PAD]"], np.int64)
    for place, row in enumerate(rows):
        words = ("[CLS]", *row.text.split(), "[SEP]")
        ids[place, : len(words)] = [vocabulary[word] for word in words]
    return ids
