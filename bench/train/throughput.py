"""Our speed part, Hugging Face's Trainer and a bare PyTorch loop on one model, data, precision and batch, alternating.

    PYTHONPATH=.:.venv/peers python bench/train/throughput.py --out bench/results/train-throughput.json

The Trainer needs `accelerate` (`make .venv/peers`); where it is missing, the Trainer is left out, and the result says so. Two more
variants answer two more questions: `unobserved` is our loop without clock and sampler (what does evidence cost?), and
`strict` is that loop under strict determinism (what does that cost?). All live in one process and take turns step by
step; ratios are taken within a round, so that what the machine does to all of them falls out. `cpu` is the time that
the process computed, which a busy machine does not stretch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.train.workload import Workload, machine
from plumbline.launch import DETERMINISM
from plumbline.train.clock import StepClock
from plumbline.train.context import Context
from plumbline.train.engine import MODEL_FIELDS, Engine
from plumbline.train.model import build_model, load_weights
from plumbline.train.numerics import apply_settings, autocast
from plumbline.train.optimizing import make_optimizer, make_schedule
from plumbline.train.sampler import Sampler

Step = Callable[[], None]
WARMUP = 8
SPARE = 100


def _model(context: Context) -> torch.nn.Module:
    speed = context.spec.speed
    model = build_model(context.spec, attention=speed.attention, dropout=speed.dropout, device=context.ranks.device)
    load_weights(model, context.weights)
    return model.train()


def _engine(context: Context, total: int, clock: StepClock | None) -> tuple[Engine, Any]:
    spec = context.spec
    engine = Engine(
        spec, _model(context), context.ranks, steps=total, precision=spec.speed.precision, part="bench",
        fused=spec.speed.fused_optimizer, clock=clock,
    )  # fmt: skip
    return engine, enumerate(context.batches(first=0, count=total, cycle=spec.speed.steps))


@contextlib.contextmanager
def ours(context: Context, total: int) -> Iterator[Step]:
    """The product's speed part, with its clock and its sampler."""
    clock = StepClock(context.ranks.device)
    engine, batches = _engine(context, total, clock)

    def step() -> None:
        clock.start()
        place, batch = next(batches)
        clock.mark("data_wait")
        engine.step(place, batch)
        clock.stop()

    with Sampler(context.ranks.device):
        yield step


@contextlib.contextmanager
def unobserved(context: Context, total: int) -> Iterator[Step]:
    """Our loop with nobody looking on; under strict determinism where the settings say so."""
    engine, batches = _engine(context, total, None)
    yield lambda: void(engine.step(*next(batches)))


def void(_: object) -> None:
    """A step leaves nothing."""


def _tensors(context: Context) -> dict[str, torch.Tensor]:
    """The rows that the part reads, tokenised before the clock starts."""
    batches = list(context.batches(first=0, count=context.spec.speed.steps))
    return {name: torch.cat([batch[name] for batch in batches]) for name in MODEL_FIELDS}


@contextlib.contextmanager
def bare(context: Context, total: int) -> Iterator[Step]:
    """What one would write by hand."""
    spec, device = context.spec, context.ranks.device
    model = _model(context)
    optimizer = make_optimizer(model, spec.optimizer, fused=spec.speed.fused_optimizer)
    schedule = make_schedule(optimizer, spec, total)
    dataset = TensorDataset(*_tensors(context).values())
    loader = DataLoader(dataset, batch_size=spec.batch_size, pin_memory=device.type == "cuda")
    batches = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())

    def step() -> None:
        found = zip(MODEL_FIELDS, next(batches), strict=True)
        inputs = {name: values.to(device, non_blocking=True) for name, values in found}
        optimizer.zero_grad(set_to_none=True)
        with autocast(spec.speed.precision, device):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.optimizer.max_grad_norm)
        optimizer.step()
        schedule.step()

    yield step


def _arguments(context: Context, total: int, folder: str) -> Any:
    from transformers import TrainingArguments

    spec = context.spec
    return TrainingArguments(
        output_dir=folder, max_steps=total, per_device_train_batch_size=spec.batch_size,
        learning_rate=spec.optimizer.learning_rate, weight_decay=spec.optimizer.weight_decay,
        max_grad_norm=spec.optimizer.max_grad_norm, warmup_steps=spec.schedule.warmup_steps,
        optim="adamw_torch_fused", lr_scheduler_type="linear", bf16=spec.speed.precision == "bf16",
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
        use_cpu=context.ranks.device.type == "cpu", dataloader_pin_memory=context.ranks.device.type == "cuda",
    )  # fmt: skip


@contextlib.contextmanager
def trainer(context: Context, total: int) -> Iterator[Step]:
    """Hugging Face's Trainer on the same tensors, in a thread that runs only when it is its turn.

    A turn ends at the end of a step, so that it holds the wait for the step's batch too.
    """
    from transformers import Trainer, TrainerCallback

    tensors = _tensors(context)
    rows = [{name: values[row] for name, values in tensors.items()} for row in range(len(tensors["labels"]))]
    turn, over, end = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            over.release()
            turn.acquire()
            control.should_training_stop = end.is_set()

    def run(folder: str) -> None:
        turn.acquire()
        arguments = _arguments(context, total + SPARE, folder)
        Trainer(model=_model(context), args=arguments, train_dataset=rows, callbacks=[Turns()]).train()
        over.release()

    def step() -> None:
        turn.release()
        over.acquire()

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=run, args=(folder,), daemon=True)
        thread.start()
        yield step
        end.set()
        turn.release()
        thread.join()


VARIANTS = {"ours": ours, "bare": bare, "unobserved": unobserved, "strict": unobserved}
if importlib.util.find_spec("accelerate") is not None:
    VARIANTS["trainer"] = trainer


def _seconds(step: Step, device: torch.device) -> tuple[float, float]:
    """Time by the clock, and time that this process computed; on a GPU of ten steps, ending with the device."""
    each = 10 if device.type == "cuda" else 1
    if device.type == "cuda":
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(each):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - wall) / each, (time.process_time() - cpu) / each


def measure(context: Context, rounds: int) -> list[dict[str, dict[str, float]]]:
    """Seconds of each variant, round by round; a round gives each a turn, every other round in reverse."""
    precision, device = context.spec.speed.precision, context.ranks.device
    total = 10 * (WARMUP + rounds) if device.type == "cuda" else WARMUP + rounds
    found = []
    with contextlib.ExitStack() as stack:
        steps = {name: stack.enter_context(make(context, total)) for name, make in VARIANTS.items()}
        for place in range(WARMUP + rounds):
            seconds = {}
            for name in list(steps) if place % 2 == 0 else list(steps)[::-1]:
                apply_settings(precision, strict=name == "strict", part="bench")
                wall, cpu = _seconds(steps[name], device)
                seconds[name] = {"wall": wall, "cpu": cpu}
            found.append(seconds)
    return found[WARMUP:]


def _ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    asked = {
        "ours/bare": ("ours", "bare"),
        "ours/trainer": ("ours", "trainer"),
        "evidence (ours/unobserved)": ("ours", "unobserved"),
        "strict/default": ("strict", "unobserved"),
    }
    found: dict[str, Any] = {}
    for name, (one, other) in asked.items():
        for clock in ("wall", "cpu"):
            values = [r[one][clock] / r[other][clock] for r in rounds if one in r and other in r]
            if values:
                low, median, high = statistics.quantiles(values, n=4)
                found.setdefault(name, {})[clock] = {"median": median, "quartiles": [low, high]}
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    # Read when cuBLAS is first used; `strict` is refused on a GPU without it, and all variants share one process.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", DETERMINISM["CUBLAS_WORKSPACE_CONFIG"])
    with tempfile.TemporaryDirectory() as folder:
        workload = Workload(Path(folder), arguments.size, arguments.length)
        spec = workload.spec(arguments.batch_size, speed={"steps": 40, "precision": arguments.precision})
        with workload.context(spec) as context:
            rounds = measure(context, arguments.rounds)
    result = {
        "machine": machine(),
        "workload": {key: str(value) for key, value in vars(arguments).items() if key != "out"},
        "left_out": [] if "trainer" in rounds[0] else ["trainer: accelerate is not installed"],
        "seconds_per_step": rounds,
        "ratios": _ratios(rounds),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["ratios"], indent=1))


if __name__ == "__main__":
    main()
