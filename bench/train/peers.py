"""Peers of our loop: Hugging Face's Trainer, and a bare PyTorch loop."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader

from plumbline.train.batches import pack_rows
from plumbline.train.compat.transformers import recompute_layers
from plumbline.train.context import Context
from plumbline.train.models.families import MODEL_FIELDS
from plumbline.train.models.model import build_model, load_weights
from plumbline.train.numerics import autocast
from plumbline.train.optimizers import make_optimizer, make_schedule

Step = Callable[[], None]
SPARE = 100


def make_model(context: Context) -> Any:
    """Return the model that every contender trains."""
    speed = context.spec.speed
    model = build_model(context.spec, attention=speed.attention, dropout=speed.dropout, device=context.ranks.device)
    load_weights(model, context.weights)
    return model.train()


def _collated(context: Context, rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return a batch of rows, cut at the longest one or packed if the settings say so."""
    batch = {name: torch.stack([row[name] for row in rows]) for name in MODEL_FIELDS}
    if context.spec.speed.padding == "fixed":
        return batch
    if context.spec.speed.padding == "packed":
        packing = pack_rows(batch["attention_mask"])
        texts = packing.texts
        return {
            **{name: packing.pack(values, -100 if name == "labels" else 0) for name, values in batch.items()},
            "attention_mask": texts[:, None, :, None] == texts[:, None, None, :], "position_ids": packing.positions,
        }  # fmt: skip
    width = -(-int(batch["attention_mask"].sum(1).max()) // 8) * 8
    return {name: values[:, :width] if values.dim() > 1 else values for name, values in batch.items()}


def _rows(context: Context) -> list[dict[str, torch.Tensor]]:
    tensors = _tensors(context)
    return [{name: values[row] for name, values in tensors.items()} for row in range(len(tensors["labels"]))]


def _tensors(context: Context) -> dict[str, torch.Tensor]:
    """Tokenize the part's rows before the clock starts."""
    batches = list(context.batches(first=0, count=context.spec.speed.steps))
    return {name: torch.cat([batch[name] for batch in batches]) for name in MODEL_FIELDS}


@contextlib.contextmanager
def bare(context: Context, total: int) -> Iterator[Step]:
    """Run a bare training loop."""
    spec, device = context.spec, context.ranks.device
    model, speed = make_model(context), spec.speed
    if speed.gradient_checkpointing:
        recompute_layers(model, draws=True)
    optimizer = make_optimizer(model, spec.optimizer, fused=spec.speed.fused_optimizer)
    schedule = make_schedule(optimizer, spec, total)
    loader = DataLoader(
        _rows(context), batch_size=spec.batch_size, pin_memory=device.type == "cuda", num_workers=speed.data_workers,
        collate_fn=partial(_collated, context), multiprocessing_context="fork" if speed.data_workers else None,
        persistent_workers=bool(speed.data_workers),
    )  # fmt: skip
    batches = itertools.chain.from_iterable(iter(loader) for _ in itertools.count())
    if speed.compile:
        model.compile()

    def step() -> None:
        inputs = {name: values.to(device, non_blocking=True) for name, values in next(batches).items()}
        optimizer.zero_grad(set_to_none=True)
        with autocast(spec.speed.precision, device):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec.optimizer.max_grad_norm)
        optimizer.step()
        schedule.step()

    yield step


def _checkpointing(is_on: bool) -> dict[str, Any]:
    from transformers import TrainingArguments

    newer = "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    name = "activation_checkpointing" if newer else "gradient_checkpointing"
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}} if is_on else {}


def _arguments(context: Context, total: int, folder: str) -> Any:
    from transformers import TrainingArguments

    spec, speed = context.spec, context.spec.speed
    return TrainingArguments(
        output_dir=folder, max_steps=total, per_device_train_batch_size=spec.batch_size,
        learning_rate=spec.optimizer.learning_rate, weight_decay=spec.optimizer.weight_decay,
        max_grad_norm=spec.optimizer.max_grad_norm, warmup_steps=spec.schedule.warmup_steps,
        optim="adamw_torch_fused", lr_scheduler_type="linear", bf16=spec.speed.precision == "bf16",
        logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
        torch_compile=speed.compile, dataloader_num_workers=speed.data_workers,
        **_checkpointing(speed.gradient_checkpointing),
        use_cpu=context.ranks.device.type == "cpu", dataloader_pin_memory=context.ranks.device.type == "cuda",
    )  # fmt: skip


class PeerFailedError(Exception):
    """Error: a peer does not run here."""


@contextlib.contextmanager
def trainer(context: Context, total: int) -> Iterator[Step]:
    """Run Hugging Face's Trainer on the same tensors, in a paced thread.

    A turn ends at the end of a step, so that it holds the wait for the step's batch too.
    """
    from transformers import Trainer, TrainerCallback

    rows = _rows(context)
    turn, over, end = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    failed: list[Exception] = []

    class Turns(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _arguments: Any, _state: Any, control: Any, **_: Any) -> None:
            over.release()
            turn.acquire()
            control.should_training_stop = end.is_set()

    def run(folder: str) -> None:
        turn.acquire()
        try:
            arguments = _arguments(context, total + SPARE, folder)
            Trainer(
                model=make_model(context), args=arguments, train_dataset=rows, callbacks=[Turns()],
                data_collator=partial(_collated, context),
            ).train()  # fmt: skip
        except Exception as error:  # noqa: BLE001 - the thread's boundary: whoever waits for its turn is told
            failed.append(error)
        over.release()

    def step() -> None:
        turn.release()
        over.acquire()
        if failed:
            raise PeerFailedError(next(iter(str(failed[0]).splitlines()), "") or type(failed[0]).__name__)

    with tempfile.TemporaryDirectory() as folder:
        thread = threading.Thread(target=run, args=(folder,), daemon=True)
        thread.start()
        yield step
        end.set()
        turn.release()
        thread.join()
