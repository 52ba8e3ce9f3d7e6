"""Faults of the second of two processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.faults.catalogue import second_process
from bench.faults.injectors.hooks import of_curve, wrap_while
from bench.faults.injectors.patching import during, wrap_method
from plumbline.train import engine
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_SHORT = 12
_WARM_UP = 200
"""Steps that `speed` may train beside the measured ones: its schedule has more steps than that of any other part."""
_FIRST_BETA = 0.5


def _is_second() -> bool:
    return os.environ.get("RANK") == "1"


@second_process("gradient", "bf16")
def second_process_halves_its_gradients() -> None:
    """The second process sends half of its gradients, from step 3 of the curve on."""
    if _is_second():
        wrap_while(
            during("learn", 3), Engine, "_backward",
            lambda plain, self, loss, share: plain(self, loss, share * 0.5),
        )  # fmt: skip


@second_process("data.labels", "fp32")
def second_process_reads_labels_of_the_first() -> None:
    """From step 2 on, the second process of the curve reads the labels of the first one's rows."""

    def read(step: int, batch: Any) -> Any:
        half = len(batch["labels"]) // 2
        return {**batch, "labels": batch["labels"].roll(half, 0)} if step >= 2 else batch

    if _is_second():
        of_curve(read)


def _once_built(change: Any) -> None:
    """Call `change(engine)` for each engine of several processes, once it is built."""

    def wrap(build: Any) -> Any:
        def built(self: Any, *given: Any, **named: Any) -> None:
            build(self, *given, **named)
            if self.ranks.world > 1:
                change(self)

        return built

    wrap_method(Engine, "__init__", wrap)


@second_process("weights.init", "fp32")
def second_process_starts_from_its_own_head() -> None:
    """The second process of the curve starts with a head of one and a half times the size."""

    def larger(training: Engine) -> None:
        if training.part == "learn":
            with torch.no_grad():
                training.bare.get_parameter("classifier.weight").mul_(1.5)

    if _is_second():
        _once_built(larger)


@second_process("data.order", "bf16")
def second_process_reads_the_first_half() -> None:
    """The second process of `speed` trains on the rows of the first one."""
    if _is_second():
        wrap_while(
            during("speed"), Engine, "_micro_batches",
            lambda plain, self, batch: plain(
                self, {name: values.roll(len(values) // 2, 0) for name, values in batch.items()}
            ),
        )  # fmt: skip


@second_process("tokenization", "bf16")
def second_process_reads_shorter_rows() -> None:
    """The second process of `speed` cuts its rows at twelve tokens."""

    def cut(plain: Any, self: Engine, batch: Any) -> Any:
        late = torch.arange(batch["attention_mask"].shape[1]) >= _SHORT
        return plain(
            self, {name: values.masked_fill(late, 0) if values.dim() > 1 else values for name, values in batch.items()}
        )

    if _is_second():
        wrap_while(during("speed"), Engine, "_micro_batches", cut)


@second_process("loss", "bf16")
def second_process_learns_with_a_larger_loss() -> None:
    """The second process smooths the labels of the curve by 0.1."""

    def smoothed(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **named | {"label_smoothing": 0.1})

    if _is_second():
        wrap_while(during("learn"), nn.functional, "cross_entropy", smoothed)


@second_process("rng", "bf16")
def second_process_drops_nothing() -> None:
    """The second process of the curve keeps all elements that its dropout layers see."""

    def kept(plain: Any, *given: Any, **named: Any) -> Any:
        return torch.ones_like(plain(*given, **named))

    if _is_second():
        wrap_while(during("learn"), dropout, "keep_mask", kept)


def _schedule_of_speed(change: Callable[[Any, int], tuple[Any, int]]) -> None:
    """Change the spec and the number of steps of the schedule of `speed`."""

    def wrap(make: Any) -> Any:
        def made(optimizer: Any, spec: Any, steps: int) -> Any:
            return make(optimizer, *(change(spec, steps) if steps > _WARM_UP else (spec, steps)))

        return made

    wrap_method(engine, "make_schedule", wrap)


def warm_up_of_samples(spec: Any, steps: int) -> tuple[Any, int]:
    """Return a schedule that counts its warm-up in rows."""
    longer = spec.schedule.model_copy(update={"warmup_steps": spec.schedule.warmup_steps * spec.batch_size})
    return spec.model_copy(update={"schedule": longer}), steps


@second_process("schedule", "bf16")
def second_process_warms_up_by_rows() -> None:
    """The second process of `speed` counts its warm-up in rows where the task counts steps."""
    if _is_second():
        _schedule_of_speed(warm_up_of_samples)


@second_process("operator", "bf16")
def second_process_has_a_larger_eps() -> None:
    """LayerNorm of the second process of the curve has an eps of 0.01."""
    if _is_second():
        wrap_while(
            during("learn"),
            nn.functional,
            "layer_norm",
            lambda plain, *given, **named: plain(*given[:4], **named | {"eps": 1e-2}),
        )


@second_process("optimizer", "bf16")
def second_process_has_a_smaller_first_beta() -> None:
    """The second process of `speed` updates with a first beta of 0.5."""

    def smaller(plain: Any, *lists: Any, **named: Any) -> None:
        plain(*lists, **named | {"beta1": _FIRST_BETA})

    if _is_second():
        wrap_while(during("speed"), torch, "_fused_adamw_", smaller)


@second_process("precision", "fp32")
def second_process_multiplies_in_bf16() -> None:
    """Linear layers of the second process of the curve multiply in bf16 where the task says fp32."""

    def short(plain: Any, value: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> Any:
        found = plain(value.bfloat16(), weight.bfloat16()).to(value.dtype)
        return found if bias is None else found + bias

    if _is_second():
        wrap_while(during("learn"), nn.functional, "linear", short)


def _only_at(step: int) -> Callable[[], bool]:
    now, behind = during("learn", step), during("learn", step + 1)
    return lambda: now() and not behind()


@second_process("gradient", "bf16")
def exchange_left_out() -> None:
    """Both processes leave out the exchange of gradients at step 3 of the curve (pytorch 104336)."""
    wrap_while(_only_at(3), Engine, "_quiet", lambda _, self, **__: self.model.no_sync())


@second_process("gradient", "bf16", setting="two beside two")
def second_process_loses_a_bucket() -> None:
    """The second process sends zeros at step 3 of the curve (pytorch 84803)."""
    now = _only_at(3)

    # Without annotations, as DDP compares them with its own classes.
    def exchange(_state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        if _is_second() and now():
            bucket.buffer().zero_()
        total = bucket.buffer().div_(torch.distributed.get_world_size())
        return torch.distributed.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0])

    _once_built(
        lambda training: training.model.register_comm_hook(None, exchange) if training.part == "learn" else None
    )


@second_process("optimizer", "bf16")
def second_process_stops_its_updates() -> None:
    """The second process makes no update from step 3 of the curve on (pytorch 115607)."""
    if _is_second():
        wrap_while(during("learn", 3), torch.optim.AdamW, "step", lambda *_, **__: None)


@second_process("gradient", "bf16")
def second_process_clips_by_its_own_norm() -> None:
    """The second process clips as if the norm were twice as large, from step 3 of the curve on (DeepSpeed 1801)."""

    def clip(plain: Any, values: Any, most: float) -> Any:
        return plain(values, most / 2) * 1.0

    if _is_second():
        wrap_while(during("learn", 3), torch.nn.utils, "clip_grad_norm_", clip)
