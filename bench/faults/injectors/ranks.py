"""Faults of the second of two processes."""

import torch
from torch.nn import functional

from bench.faults.catalogue import is_second, second_process
from bench.faults.injectors.hooks import of_curve, once_built, split
from bench.faults.injectors.patching import by, during, nothing, of_output, patch, replaces, with_keys
from plumbline.train import engine
from plumbline.train.engine import Engine
from plumbline.train.models import dropout

_SHORT = 12
_WARM_UP = 200
"""Steps that `speed` may train beside the measured ones: its schedule has more steps than that of any other part."""
_CURVE, _SPEED = during("learn"), during("speed")
_STEP = during("learn", 3, 3)


@second_process("gradient", "bf16")
def second_process_halves_its_gradients():
    """The second process sends half of its gradients, from step 3 of the curve on."""
    patch(Engine, "_backward", lambda plain, self, loss, share: plain(self, loss, share * 0.5), during("learn", 3))


@second_process("data.labels", "fp32")
@by(of_curve)
def second_process_reads_labels_of_the_first(step, batch):
    """From step 2 on, the second process of the curve reads the labels of the first one's rows."""
    half = len(batch["labels"]) // 2
    return {**batch, "labels": batch["labels"].roll(half, 0)} if step >= 2 else batch


@second_process("weights.init", "fp32")
@by(once_built)
@torch.no_grad()
def second_process_starts_from_its_own_head(built):
    """The second process of the curve starts with a head of one and a half times the size."""
    if built.ranks.world > 1 and built.part == "learn":
        built.bare.get_parameter("classifier.weight").mul_(1.5)


@second_process("data.order", "bf16")
@by(split, _SPEED)
def second_process_reads_the_first_half(batch):
    """The second process of `speed` trains on the rows of the first one."""
    return {name: values.roll(len(values) // 2, 0) for name, values in batch.items()}


@second_process("tokenization", "bf16")
@by(split, _SPEED)
def second_process_reads_shorter_rows(batch):
    """The second process of `speed` cuts its rows at twelve tokens."""
    late = torch.arange(batch["attention_mask"].shape[1]) >= _SHORT
    return {name: values.masked_fill(late, 0) if values.dim() > 1 else values for name, values in batch.items()}


@second_process("loss", "bf16")
def second_process_learns_with_a_larger_loss():
    """The second process smooths the labels of the curve by 0.1."""
    patch(functional, "cross_entropy", with_keys(label_smoothing=0.1), _CURVE)


@second_process("rng", "bf16")
def second_process_drops_nothing():
    """The second process of the curve keeps all elements that its dropout layers see."""
    patch(dropout, "keep_mask", of_output(torch.ones_like), _CURVE)


@second_process("schedule", "bf16")
@replaces(engine, "make_schedule")
def second_process_warms_up_by_rows(plain, optimizer, spec, steps):
    """The second process of `speed` counts its warm-up in rows where the task counts steps."""
    longer = spec.schedule.model_copy(update={"warmup_steps": spec.schedule.warmup_steps * spec.batch_size})
    return plain(optimizer, spec.model_copy(update={"schedule": longer}) if steps > _WARM_UP else spec, steps)


@second_process("operator", "bf16")
@replaces(functional, "layer_norm", _CURVE)
def second_process_has_a_larger_eps(plain, *given, **named):
    """LayerNorm of the second process of the curve has an eps of 0.01."""
    return plain(*given[:4], **named | {"eps": 1e-2})


@second_process("optimizer", "bf16")
def second_process_has_a_smaller_first_beta():
    """The second process of `speed` updates with a first beta of 0.5."""
    patch(torch, "_fused_adamw_", with_keys(beta1=0.5), _SPEED)


@second_process("precision", "fp32")
@replaces(functional, "linear", _CURVE)
def second_process_multiplies_in_bf16(plain, value, weight, bias=None):
    """Linear layers of the second process of the curve multiply in bf16 where the task says fp32."""
    found = plain(value.bfloat16(), weight.bfloat16()).to(value.dtype)
    return found if bias is None else found + bias


@second_process("gradient", "bf16", in_both=True)
def exchange_left_out():
    """Both processes leave out the exchange of gradients at step 3 of the curve (pytorch 104336)."""
    patch(Engine, "_quiet", lambda _, self, **__: self.model.no_sync(), _STEP)


@second_process("gradient", "bf16", setting="two beside two", in_both=True)
@by(once_built)
def second_process_loses_a_bucket(built):
    """The second process sends zeros at step 3 of the curve (pytorch 84803)."""

    def exchange(_state, bucket):
        if is_second() and _STEP():
            bucket.buffer().zero_()
        total = bucket.buffer().div_(torch.distributed.get_world_size())
        return torch.distributed.all_reduce(total, async_op=True).get_future().then(lambda done: done.value()[0])

    if built.ranks.world > 1 and built.part == "learn":
        built.model.register_comm_hook(None, exchange)


@second_process("optimizer", "bf16")
def second_process_stops_its_updates():
    """The second process makes no update from step 3 of the curve on (pytorch 115607)."""
    patch(torch.optim.AdamW, "step", nothing, during("learn", 3))


@second_process("gradient", "bf16")
@replaces(torch.nn.utils, "clip_grad_norm_", during("learn", 3))
def second_process_clips_by_its_own_norm(plain, values, most):
    """The second process clips as if the norm were twice as large, from step 3 of the curve on (DeepSpeed 1801)."""
    return plain(values, most / 2) * 1.0
