"""`python -m bench.capture.cost [MODEL ...]`: what a record costs the training that it records.

Two equal loops take turns step by step in one process, one bare and one recorded, and so do passes of an evaluation.
Times are of the process's CPU and of the wall, with one thread, so that a busy machine still tells. Each of three
models is recorded twice; the steps that a round draws are apart. The table is `bench/results/capture-cost.json`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)

import plumbline
from bench.faults.results import FOLDER, read_result, write_result

RESULT = FOLDER / "capture-cost.json"
RECORDS, STEPS, SHARE = 2, 24, 0.03
HOOKS = ("_enters", "_leaves", "_updates", "_updated", "step")
Times = tuple[float, float]
"""Seconds of the process's CPU, and of the wall."""


def decoder() -> tuple[Any, Callable[[], dict[str, torch.Tensor]]]:
    """Return a decoder of 6 blocks, and its batches."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=6, n_head=4))

    def batch() -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 512, (8, 64))
        return {"input_ids": ids, "labels": ids}

    return model, batch


def convnet() -> tuple[Any, Callable[[], dict[str, torch.Tensor]]]:
    """Return a residual network of 18 layers, and its images."""
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32, 64, 128], "depths": [2, 2, 2, 2]}
    model = ResNetForImageClassification(ResNetConfig(layer_type="basic", num_labels=10, **sizes))
    return model, lambda: {"pixel_values": torch.randn(16, 3, 128, 128), "labels": torch.randint(0, 10, (16,))}


def encoder() -> tuple[Any, Callable[[], dict[str, torch.Tensor]]]:
    """Return an encoder of 12 blocks, whose step takes some 300 ms and more."""
    sizes = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}
    model = BertForSequenceClassification(BertConfig(vocab_size=4000, **sizes))

    def batch() -> dict[str, torch.Tensor]:
        ids, mask = torch.randint(0, 4000, (8, 64)), torch.ones(8, 64, dtype=torch.int64)
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (8,))}

    return model, batch


MODELS = {"decoder": decoder, "convnet": convnet, "encoder": encoder}


def timed(work: Callable[[], Any]) -> Times:
    """Return the seconds of a call."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


class Counted(plumbline.capture):
    """Recorder that counts the CPU seconds of its own hooks."""

    spent = 0.0


def counted(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a recorder's hook that counts its seconds."""

    def call(recorder: Counted, *given: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return hook(recorder, *given, **named)
        finally:
            recorder.spent += time.process_time() - began

    return call


for name in HOOKS:
    setattr(Counted, name, counted(getattr(Counted, name)))


class Training:
    """A loop whose steps and evaluations are called one by one, with a record or without."""

    def __init__(self, make: Callable[[], Any], folder: Path | None) -> None:
        torch.manual_seed(7)
        self.model, self._batch = make()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.given = self._batch()
        self.run: Any = None
        self.begins = (0.0, 0.0)
        if folder is not None:
            self.run = Counted(folder, self.model, self.optimizer, steps=STEPS + 1, seed=7)
            self.begins = timed(self.run.__enter__)

    def step(self) -> None:
        """Do one update."""
        self.optimizer.zero_grad()
        loss = self.model(**self.given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.run is not None:
            self.run.step()

    def evaluate(self) -> None:
        """Do one pass of an evaluation."""
        self.model.eval()
        with torch.no_grad():
            functional.softmax(self.model(**self.given).logits, -1)
        self.model.train()


def alternate(make: Callable[[], Any], folder: Path, rounds: list[dict[str, Any]]) -> Times:
    """Add a round for each recorded step; return what the record costs before the first and behind the last one."""
    sides = {"bare": Training(make, None), "recorded": Training(make, folder)}
    begun, found = sides["recorded"].begins, []
    for place in range(STEPS):
        order = list(sides.items()) if place % 2 else list(sides.items())[::-1]
        spent = sides["recorded"].run.spent
        found.append({"step": {name: timed(each.step) for name, each in order}})
        found[-1]["hooks"] = sides["recorded"].run.spent - spent
        found[-1]["evaluation"] = {name: timed(each.evaluate) for name, each in order}
    ended = timed(lambda: sides["recorded"].run.__exit__(None, None, None))
    full = plumbline.read_record(folder).record.evidence.captured.recorded
    for place, each in enumerate(found):
        # The weights are compared at the first forward pass behind a recorded step.
        kind = "recorded" if place in full else "behind" if place - 1 in full else "log"
        rounds.append({"kind": kind, "hooked": place + 1 in full, **each})
    return begun[0] + ended[0], begun[1] + ended[1]


def costs(rounds: list[dict[str, Any]], what: str, clock: int) -> dict[str, float]:
    """Return median times in ms, the median and the quartiles of the ratio, and the median difference in ms."""
    bare, recorded = ([each[what][side][clock] * 1e3 for each in rounds] for side in ("bare", "recorded"))
    ratios = statistics.quantiles([b / a for a, b in zip(bare, recorded, strict=True)])
    more = statistics.median(b - a for a, b in zip(bare, recorded, strict=True))
    return {
        "bare_ms": round(statistics.median(bare), 2), "more_ms": round(more, 3), "ratio": round(ratios[1], 4),
        "quartiles": [round(ratios[0], 4), round(ratios[2], 4)],
    }  # fmt: skip


def measure(name: str) -> dict[str, Any]:
    """Return a model's costs: of the log, of recorded steps, of an evaluation, and of all but the log."""
    rounds: list[dict[str, Any]] = []
    around = []
    with tempfile.TemporaryDirectory() as folder:
        for place in range(RECORDS):
            os.environ["PLUMBLINE_ROUND"] = str(place)
            around.append(alternate(MODELS[name], Path(folder, str(place)), rounds))
    logs = [each for each in rounds if each["kind"] == "log"]
    apart = [each for each in rounds if each["kind"] != "log"]
    quiet = [each for each in rounds if not each["hooked"]]
    hooks = round(statistics.median(each["hooks"] for each in logs) * 1e3, 3)
    row: dict[str, Any] = {"model": name, "rounds": len(logs), "log, inside of its hooks, cpu ms": hooks}
    for place, clock in enumerate(("cpu", "wall")):
        row[f"log, {clock}"] = costs(logs, "step", place)
        row[f"evaluation, {clock}"] = costs(quiet, "evaluation", place)
        row[f"recorded step, {clock}"] = costs([each for each in rounds if each["kind"] == "recorded"], "step", place)
        own = sum(each["step"]["recorded"][place] - each["step"]["bare"][place] for each in apart) / RECORDS
        bare, edge = row[f"log, {clock}"]["bare_ms"] / 1e3, statistics.median(each[place] for each in around)
        log = max(0.0, row[f"log, {clock}"]["more_ms"]) * STEPS / 1e3
        row[f"whole record, {clock}"] = {
            "steps_s": round(own + log, 3), "before_and_after_s": round(edge, 3),
            "training_s_for_3_percent": round((own + log + edge) / SHARE, 1),
            "updates_for_3_percent": round((own + log + edge) / SHARE / bare),
        }  # fmt: skip
    return row


def main() -> None:
    """Measure the models that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    names = parser.parse_args().names or list(MODELS)
    torch.set_num_threads(1)
    began, load = time.perf_counter(), os.getloadavg()[0]
    rows = {each["model"]: each for each in read_result(RESULT)["cells"]}
    for name in names:
        rows[name] = measure(name)
        print(rows[name], flush=True)
    write_result(
        RESULT, "python -m bench.capture.cost", list(rows.values()),
        seconds=round(time.perf_counter() - began), load=[round(load, 1), round(os.getloadavg()[0], 1)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
