"""Repeat single training steps ("windows") in fp64.

A window starts from weights and optimizer moments that are equal on every machine, and executes the training's own
objects: model, masks, loss, clipping, optimizer, schedule and evaluation. Kernels and devices change its numbers by
1e-15, so equal windows prove equal formulas where the trainings themselves separate by rounding. The training's state
is restored afterwards, and its bits are those of a training without windows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.hooks import RemovableHandle

from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import EvaluationEvidence, PortableEvidence, PortableWindow
from plumbline.train.batches import Batch
from plumbline.train.compat.torch import without_compiler
from plumbline.train.compat.transformers import attention_function
from plumbline.train.context import Context, auxiliary
from plumbline.train.engine import Engine, Observer
from plumbline.train.engine_state import Start, borrowed
from plumbline.train.failure import MODULE_ERRORS
from plumbline.train.machine.mantissa import measure_attention
from plumbline.train.portable.fp64 import fp64_arithmetic
from plumbline.train.portable.products import check_products
from plumbline.train.portable.steps import parted_processes, portable_window, short_digest
from plumbline.train.portable.window_digests import ModuleDigests, scale_gradients
from plumbline.train.ranks import Ranks
from plumbline.train.tasks import IGNORED
from plumbline.train.watch.recorder import Recorder

_ROWS, _PACKED = 4, 3
"""Rows of a window, and the least number of each micro-batch whose texts are packed."""


def window_rows(
    attention_mask: NDArray[Any], draw: Sequence[int], parts: int = 1, *, packed: bool = False
) -> list[int]:
    """Choose a few batch rows to repeat: longest, shortest, and random ones.

    A formula may be wrong for rows beyond a length alone, and padding has to be among them. Where texts are `packed`,
    short ones are neighbours, so that some share a row.
    """
    num_rows = min(len(attention_mask), parts * max(_PACKED if packed else 1, _ROWS // parts))
    by_length = np.argsort(attention_mask.sum(axis=1), kind="stable").tolist()
    if packed:
        return [*by_length[: num_rows - 1], by_length[-1]]
    drawn = sorted(by_length, key=lambda row: digest_json([*draw, row]))
    return sorted([*dict.fromkeys((by_length[-1], by_length[0], *drawn))][:num_rows])


def _fed(arrays: Mapping[str, NDArray[Any]]) -> tuple[tuple[str, str | None], ...]:
    """Return the digests of the evaluation's inputs and labels."""
    return tuple((name, short_digest(arrays[name])) for name in ("inputs", "labels") if name in arrays)


@dataclass(frozen=True)
class WindowSetting:
    """Settings shared by all repeated steps (windows) of one training."""

    part: Literal["speed", "learn"]
    start: Start
    around: Callable[[Engine], contextlib.AbstractContextManager[None]]
    """Context in which the training's step is that of a single process, with masks that are equal everywhere."""
    evaluate: Callable[[Engine, int], tuple[EvaluationEvidence, dict[str, NDArray[Any]]]] | None = None
    """The training's evaluation of a few rows, with its arrays, after a number of steps."""


class WindowRunner:
    """Runner that repeats training steps in fp64, and stores the evidence."""

    def __init__(self, context: Context, setting: WindowSetting, found: dict[str, Any]) -> None:
        """Create the runner; `found` is the evidence so far, to extend."""
        self._context, self._ranks, self._setting, self._found = context, context.ranks, setting, found
        for name in ("windows", "ranks"):
            found.setdefault(name, [])

    def run(self, engine: Callable[[], Engine], at: int, batch: Batch) -> None:
        """Repeat step `at` on a few rows."""
        found, window = self._found, None
        if found.get("lost"):
            return
        with auxiliary("lost", self._context, found, MODULE_ERRORS):
            if not found["windows"]:
                check_products(self._ranks.device)
            window = self._run(engine(), at, batch)
        if window is not None and not found.get("lost"):
            differing = parted_processes(self._ranks, PortableEvidence(windows=(window,)))
            found["ranks"] += [each.to_json() for each in differing]
            found["windows"].append(window.to_json())

    def _run(self, engine: Engine, at: int, batch: Batch) -> PortableWindow:
        setting, alone = self._setting, Ranks(device=self._ranks.device)
        few = few_rows(engine, at, batch)
        outputs, evaluated = ModuleDigests(), ModuleDigests()
        evaluation, arrays = None, dict[str, NDArray[Any]]()
        change = partial(scale_gradients, max_norm=engine.spec.optimizer.max_grad_norm, is_clipped=at > 0)
        recorder = Recorder(engine, outputs, change)
        with (
            borrowed(engine, replace(setting.start, is_double=True), alone, Observer(recorder, engine.observer)),
            setting.around(engine),
            without_compiler(),
        ):
            attend = attention_function(engine.bare)
            bits = measure_attention(attend, alone.device, engine.precision) if attend else {}
            self._context.keep_bits(setting.part, bits)
            with fp64_arithmetic(), outputs.calls.hook(engine.bare):
                engine.step(at, few)
            if setting.evaluate is not None:
                with fp64_arithmetic(), evaluated.calls.hook(engine.bare), _mirrored(engine.bare):
                    evaluation, arrays = setting.evaluate(engine, at)
        books = {"forward": outputs, "evaluated": evaluated}
        window = portable_window(at, {**recorder.kept, "evaluated": evaluated.read()["forward"]}, recorder.loss_value)
        formats = {f"{stage} {name}": each for stage, book in books.items() for name, each in book.formats.items()}
        return window.replace(
            fed=outputs.fed(), evaluation=evaluation, evaluated=(*_fed(arrays), *window.evaluated), formats=formats
        )

    def evidence(self) -> PortableEvidence:
        """Return the evidence of all repeated steps (windows) so far."""
        return PortableEvidence.model_validate(self._found)


def few_rows(engine: Engine, at: int, batch: Batch) -> Batch:
    """Return a few rows of a batch to repeat."""
    parts, is_packed = engine.spec.optimizer.accumulation_steps, engine.padding == "packed"
    masks = batch["attention_mask"].numpy()
    rows = window_rows(masks, (engine.spec.seed, at), parts, packed=is_packed)
    few = {name: values[rows] for name, values in batch.items()}
    if is_packed:
        half = masks.shape[1] // 2
        few["attention_mask"][:-1, half:] = 0
        if few["labels"].dim() > 1:
            few["labels"][few["attention_mask"] == 0] = IGNORED
    return few


def _mirrored(model: torch.nn.Module) -> RemovableHandle:
    """Subtract the opposite row's logits from each row's.

    Answers are then different from row to row, and close, so that the way in which they are chosen and counted shows.
    """

    def hook(_model: torch.nn.Module, _given: Any, outputs: Any) -> None:
        outputs.logits = outputs.logits - outputs.logits.flip(0)

    return model.register_forward_hook(hook)
