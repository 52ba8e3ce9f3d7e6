from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from plumbline.data.datasets.build import build_dataset
from plumbline.data.datasets.publish import publish, publish_weights, weights_key
from plumbline.data.stores import open_store
from plumbline.judge.pair import Pair
from plumbline.records import load_record
from plumbline.schema.experiment import Experiment
from plumbline.schema.manifest import Manifest
from plumbline.schema.record import RunRecord
from plumbline.schema.sketch import relative_error
from plumbline.schema.spec import DataSpec, ModelSpec, RunSpec, write_spec
from plumbline.schema.stage import TAPPED, Stage
from plumbline.schema.suite import DatasetSource
from plumbline.train import speed
from plumbline.train.engine import Engine
from plumbline.train.job import TrainJob, run_job
from plumbline.train.machine import fingerprint, microbench
from plumbline.train.weights import make_weights

# Trainings inside this process are strict too, and on a GPU that is refused without it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

MODEL = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
    "num_labels": 2,
}
RECIPE: dict[str, Any] = {
    "seed": 7,
    "batch_size": 8,
    "probe": {"steps": 6, "evaluation_rows": 24, "portable_steps": 2},
}


@dataclass
class Trained:
    """Record with its arrays."""

    folder: Path
    record: RunRecord

    @property
    def probe(self):
        assert self.record.evidence.probe is not None
        return self.record.evidence.probe

    def arrays(self, part: str) -> dict[str, NDArray[Any]]:
        return load_file(self.folder / f"{part}.safetensors")


def _trained(out: Path) -> Trained:
    """Return the record, whose parts the controller's bounds must let through."""
    loaded = load_record(out)
    if loaded.record.exit.status == "completed":
        loaded.read_parts()
    return Trained(out, loaded.record)


class Workshop:
    """Published dataset with weights, and helpers to train on it."""

    def __init__(self, folder: Path, task: str, *, num_layers: int = 2) -> None:
        self.folder, self.task = folder, task
        source = DatasetSource(grammar_seed=1, train_rows=96, evaluation_rows=40, rows_per_shard=32, vocab_size=256)
        self.manifest: Manifest = build_dataset(source, "reviews", task, folder / "dataset")
        self.url = f"file://{folder}/store"
        self.store = open_store(self.url)
        publish(folder / "dataset", self.store)
        self.model = {**MODEL, "num_hidden_layers": num_layers, "vocab_size": self.manifest.vocab_size}
        if task != "sequence-classification":
            self.model["num_labels"] = None
        if task == "causal-lm":
            keys = {"n_embd": 64, "n_layer": num_layers, "n_head": 2, "n_positions": 32, "n_inner": 128}
            special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
            settings = {**keys, **special, "vocab_size": self.manifest.vocab_size}
            self.model |= {"family": "gpt2", "type_vocab_size": 1, "settings": settings}
        self.weights = folder / "weights.safetensors"
        self.weights_sha256 = make_weights({**self.model, "task": task}, 3, self.weights)
        publish_weights(self.weights, self.store, self.weights_sha256)
        self._count = 0

    def spec(self, **changes: Any) -> RunSpec:
        model = ModelSpec.model_validate(
            {**self.model, "weights_key": weights_key(self.weights_sha256), "weights_sha256": self.weights_sha256}
        )
        data = DataSpec(name="reviews", manifest_sha256=self.manifest.digest, sequence_length=16)
        recipe = {**RECIPE, **changes}
        if recipe.get("learn"):  # too few steps to learn
            recipe["learn"] = {"expect": "chance", **recipe["learn"]}
        return RunSpec.model_validate({"workload": "test", "task": self.task, "model": model, "data": data, **recipe})

    def out(self) -> Path:
        self._count += 1
        return self.folder / f"out-{self._count}"

    def train(self, spec: RunSpec, out: Path | None = None, **changes: Any) -> Trained:
        """Train in this process."""
        out = out or self.out()
        given = {"data": self.url, "cache": self.folder / "cache", "platform": "here", "record_id": "r", **changes}
        run_job(TrainJob(spec=spec, out=out, **given), threading.Event())
        return _trained(out)

    def command(self, spec: RunSpec, out: Path, *more: str) -> list[str]:
        path = out.with_suffix(".json")
        write_spec(spec, path)
        cache = str(self.folder / "cache")
        given = [str(path), str(out), "--data", self.url, "--cache", cache]
        return [sys.executable, "-m", "plumbline.train", *given, *more]

    def experiment(self, spec: RunSpec, body: dict[str, Any], files: Mapping[str, Path] | None = None) -> Trained:
        """Run an experiment on the probe, in this process."""
        bundle = self.out()
        bundle.mkdir()
        request = Experiment.model_validate({"experiment_id": "e", "steps": spec.probe.steps, **body})
        (bundle / "experiment.json").write_text(json.dumps(request.to_json()))
        for name, path in (files or {}).items():
            (bundle / name).write_bytes(path.read_bytes())
        return self.train(spec, experiment=bundle)


@pytest.fixture(scope="session", autouse=True)
def _brief() -> Iterator[None]:
    """Shorten what a training does beside training, in this process: nothing here is about how long it takes."""
    read = fingerprint._packages
    installed = functools.cache(lambda _path: read())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fingerprint, "_packages", lambda: installed(tuple(sys.path)))
        patch.setattr(microbench, "_SECONDS", 0.01)
        patch.setattr(microbench, "_FEWEST", 1)
        patch.setattr(speed, "LONGEST_WARMUP", 2 * speed.WINDOW)
        yield


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("classification"), "sequence-classification")


@pytest.fixture(scope="session")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("masked"), "masked-lm")


@pytest.fixture(scope="session")
def baseline(workshop: Workshop) -> Trained:
    """Return the undisturbed probe."""
    return workshop.train(workshop.spec())


@pytest.fixture(autouse=True)
def _default_determinism() -> Iterator[None]:
    """Restore default determinism after each test."""
    yield
    torch.use_deterministic_algorithms(False)


def before_steps(patch: pytest.MonkeyPatch, call: Callable[[Engine, int], object]) -> None:
    """Call this with the engine and the step's number before each step of an engine."""
    plain = Engine.step

    def step(self: Engine, place: int, batch: Any) -> Any:
        call(self, place)
        return plain(self, place, batch)

    patch.setattr(Engine, "step", step)


def differing_steps(trained: Trained, other: Trained, field: str) -> list[int]:
    """Return the steps at which a field of the evidence differs."""
    pairs = zip(trained.probe.steps_of(), other.probe.steps_of(), strict=True)
    return [a.step for a, b in pairs if getattr(a, field) != getattr(b, field)]


def tap_errors(trained: Trained, other: Trained) -> dict[tuple[int, str, str], float]:
    """Return the relative error of each common tap."""
    mine, theirs = trained.arrays("sketches")["sketch"], other.arrays("sketches")["sketch"]
    places = {(tap.step, tap.stage, tap.name): place for place, tap in enumerate(other.probe.taps)}
    errors = {}
    for place, tap in enumerate(trained.probe.taps):
        key = (tap.step, tap.stage, tap.name)
        if key in places:
            result = relative_error(mine[place], theirs[places[key]], tap.norm)
            errors[key] = np.inf if result is None else result
    return errors


def within_limits(trained: Trained, other: Trained) -> bool:
    """Return whether every tensor's error is within its limit of rounding."""
    pair = Pair(load_record(trained.folder), load_record(other.folder))
    stages: tuple[Stage, ...] = TAPPED
    errors = [error for step in pair.tap_steps for stage in stages for error in pair.errors(step, stage)]
    return bool(errors) and not any(error.over for error in errors)


def processes_below(folder: Path) -> list[str]:
    """Command lines of running processes that name `folder`."""
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and path.parent.name != str(os.getpid()):
            result.append(line)
    return result
