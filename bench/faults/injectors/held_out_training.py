"""Held out: faults of loss, gradients, optimizer, schedule and evaluation."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch.nn import functional
from torch.optim import adamw

from bench.faults.injectors.held_out_model import _new_release
from bench.faults.injectors.patching import after_build, replace_everywhere, step_counter, wrap_method
from bench.faults.injectors.training import _clip, _entropy, _factor, _loaded, _made
from plumbline.train import engine, evaluation

# Loss.


def z_loss() -> None:
    """A penalty on the logits' size is added to the loss."""
    _entropy(
        lambda entropy: (
            lambda scores, labels, *args, **rest: (
                entropy(scores, labels, *args, **rest) + 1e-3 * scores.logsumexp(-1).square().mean()
            )
        )
    )


def two_binary_losses() -> None:
    """Each class has a yes or no of its own."""
    _entropy(
        lambda _entropy: (
            lambda scores, labels, *args, **rest: functional.binary_cross_entropy_with_logits(
                scores, functional.one_hot(labels, scores.shape[-1]).to(scores)
            )
        )
    )


def focal_loss() -> None:
    """Rows that are easy count less."""

    def wrap(entropy: Any) -> Any:
        def focal(scores: Any, labels: Any, *args: Any, **rest: Any) -> Any:
            each = entropy(scores, labels, reduction="none")
            return ((1 - (-each).exp()) * each).mean()

        return focal

    _entropy(wrap)


def loss_temperature() -> None:
    """The loss divides the logits by 1.05."""
    _entropy(lambda entropy: lambda scores, labels, *args, **rest: entropy(scores / 1.05, labels, *args, **rest))


def mean_of_row_means() -> None:
    """Masked language modelling takes the mean of each row, then of the rows."""

    def wrap(entropy: Any) -> Any:
        def mean(scores: Any, labels: Any, *args: Any, **rest: Any) -> Any:
            each = entropy(scores, labels, reduction="none").reshape(-1, 32)
            counted = (labels != -100).reshape(-1, 32)
            used = counted.any(1)
            return ((each * counted).sum(1)[used] / counted.sum(1)[used]).mean()

        return mean

    _entropy(wrap)


# Gradients.


def clipped_one_by_one() -> None:
    """Each parameter's gradient is clipped by its own norm."""
    _clip(lambda clip: lambda parameters, most, *args, **rest: [clip([one], most) for one in parameters])


def clipped_twice_the_norm() -> None:
    """Clipping sees gradients that are still scaled by two."""
    _clip(lambda clip: lambda parameters, most, *args, **rest: clip(parameters, most / 2))


def scaled_by_frequency() -> None:
    """A token's gradient is divided by how often it stands in the batch."""

    def change(model: Any) -> None:
        model.bert.embeddings.word_embeddings.scale_grad_by_freq = True

    after_build(change)


def bias_gradients_lost() -> None:
    """A backend's way back leaves the biases' gradients at zero."""

    def change(model: Any) -> None:
        for name, value in model.bert.encoder.named_parameters():
            if name.endswith("dense.bias"):
                value.register_hook(torch.zeros_like)

    after_build(change)


def last_micro_batch_lost() -> None:
    """The last micro-batch does not make it into the sum."""

    def wrap(back: Any) -> Any:
        def halved(self: Any, loss: Any, share: float) -> Any:
            calls = self.__dict__["calls"] = self.__dict__.get("calls", 0) + 1
            return back(self, loss, share * (calls % self.spec.optimizer.accumulation_steps != 0))

        return halved

    wrap_method(engine.Engine, "_backward", wrap)


def doubled_at_step_seven() -> None:
    """At one step gradients are added up over the processes twice."""
    step = step_counter()
    wrap_method(
        engine.Engine,
        "_backward",
        lambda back: lambda self, loss, share: back(self, loss, share * (1 + (step() == 7))),
    )


def racing_embedding() -> None:
    """The gradient of the table of tokens is summed by atomics."""

    def change(model: Any) -> None:
        noise = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
        model.bert.embeddings.word_embeddings.weight.register_hook(
            lambda gradient: gradient * (1 + 1.2e-7 * torch.randint(-1, 2, gradient.shape, generator=noise))
        )

    after_build(change)


# Optimizer.


def _own_update(rule: Any) -> None:
    """AdamW with an update of one's own; `rule` gets the corrected moments."""

    @torch.no_grad()
    def step(self: Any, _closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for value in group["params"]:
                if value.grad is None:
                    continue
                state = self.state[value]
                if not state:
                    state |= {
                        "step": torch.tensor(0.0), "exp_avg": torch.zeros_like(value),
                        "exp_avg_sq": torch.zeros_like(value),
                    }  # fmt: skip
                state["step"] += 1
                count = float(state["step"])
                first = state["exp_avg"].mul_(beta1).add_(value.grad, alpha=1 - beta1)
                second = state["exp_avg_sq"].mul_(beta2).addcmul_(value.grad, value.grad, value=1 - beta2)
                rule(group, value, first / (1 - beta1**count), second / (1 - beta2**count))

    adamw.AdamW.step = step


def eps_inside_the_root() -> None:
    """Eps stands inside the root."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - group["lr"] * group["weight_decay"])
        value.sub_(group["lr"] * first / (second + group["eps"]).sqrt())

    _own_update(rule)


def decay_without_the_rate() -> None:
    """Weights decay by the same share whatever the learning rate is."""

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        value.mul_(1 - 5e-4 * group["weight_decay"])
        value.sub_(group["lr"] * first / (second.sqrt() + group["eps"]))

    _own_update(rule)


def update_in_another_order() -> None:
    """A release of torch whose AdamW multiplies in another order."""
    _new_release()

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        update = first / (second.sqrt() + group["eps"])
        value.sub_(group["lr"] * (update + group["weight_decay"] * value))

    _own_update(rule)


def layer_norms_decay() -> None:
    """LayerNorms decay, biases do not."""

    def change(make: Any) -> Any:
        def made(model: Any, spec: Any, **rest: Any) -> Any:
            optimizer = make(model, spec, **rest)
            norms = {id(value) for name, value in model.named_parameters() if name.endswith("LayerNorm.weight")}
            decayed, other = optimizer.param_groups
            decayed["params"] += [value for value in other["params"] if id(value) in norms]
            other["params"] = [value for value in other["params"] if id(value) not in norms]
            return optimizer

        return made

    _made(change)


def _before_update(change: Any) -> None:
    """Change the optimizer's state before the update whose number is given, from 0 on."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **rest: Any) -> Any:
            count = self.__dict__["updates"] = self.__dict__.get("updates", -1) + 1
            change(self, count)
            return step(self, *args, **rest)

        return stepped

    wrap_method(adamw.AdamW, "step", wrap)


def moments_lost() -> None:
    """A restart at the seventh step begins without the optimizer's state."""
    _before_update(lambda optimizer, count: optimizer.state.clear() if count == 6 else None)


def counted_from_two() -> None:
    """From the second update on, the correction of the bias counts one too many."""

    def change(optimizer: Any, count: int) -> None:
        if count == 1:
            for state in optimizer.state.values():
                state["step"] += 1

    _before_update(change)


def second_moment_in_bf16() -> None:
    """The second moment is kept in bf16."""

    def change(optimizer: Any, _count: int) -> None:
        for state in optimizer.state.values():
            state["exp_avg_sq"].copy_(state["exp_avg_sq"].bfloat16().to(state["exp_avg_sq"]))

    _before_update(change)


def one_weight_not_updated() -> None:
    """The update of a matrix that lies transposed in memory goes into a copy, and is lost."""

    def change(model: Any) -> None:
        model.bert.encoder.layer[1].output.dense.weight.is_lost = True

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any, **rest: Any) -> Any:
            values = [value for group in self.param_groups for value in group["params"] if hasattr(value, "is_lost")]
            kept = [value.detach().clone() for value in values]
            result = step(self, *args, **rest)
            for value, before in zip(values, kept, strict=True):
                value.data.copy_(before)
            return result

        return stepped

    after_build(change)
    wrap_method(adamw.AdamW, "step", wrap)


def nesterov() -> None:
    """NAdam in the place of AdamW."""

    def make(_adam: Any) -> Any:
        def made(groups: Any, *, fused: Any = None, **rest: Any) -> Any:
            return torch.optim.NAdam(groups, decoupled_weight_decay=True, **rest)

        return made

    wrap_method(torch.optim, "AdamW", make)


# Schedule.


def cosine() -> None:
    """A cosine in place of the straight line."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: (
                factor(schedule, step, steps) if step < 2 else 0.5 + 0.5 * math.cos(math.pi * (step - 2) / (steps - 2))
            )
        )
    )


def stepped_twice() -> None:
    """The schedule goes twice as fast, once for each of two processes (transformers 24088)."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, 2 * step, steps))


def warmup_from_zero() -> None:
    """The warm-up begins at zero."""
    _factor(
        lambda factor: lambda schedule, step, steps: step / 2 if step < 2 else factor(schedule, step, steps),
    )


def schedule_restarted() -> None:
    """A restart at the seventh step begins the schedule anew."""
    _factor(lambda factor: lambda schedule, step, steps: factor(schedule, step - 6 * (step >= 6), steps))


def rate_in_half() -> None:
    """The learning rate is kept in fp16."""
    _factor(
        lambda factor: (
            lambda schedule, step, steps: float(torch.tensor(factor(schedule, step, steps) * 5e-4).half()) / 5e-4
        )
    )


# Evaluation.


def averaged_by_batch() -> None:
    """Loss and accuracy are means of the batches' means (transformers 41898)."""

    class Sums(evaluation._Sums):
        def __init__(self) -> None:
            super().__init__()
            self._means: list[tuple[float, float]] = []

        def add(self, batch: Any, logits: Any, loss: float | None) -> None:
            right = self._right
            super().add(batch, logits, loss)
            self._means.append(((self._right - right) / len(batch["labels"]), loss or 0.0))

        def evidence(self, step: int, *, training_mode: bool) -> Any:
            found, arrays = super().evidence(step, training_mode=training_mode)
            accuracy, loss = (sum(column) / len(self._means) for column in zip(*self._means, strict=True))
            return found.replace(accuracy=accuracy, loss=loss), arrays

    evaluation._Sums = Sums


def evaluated_shorter() -> None:
    """Texts are cut at sixteen tokens for evaluation."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            for name in ("input_ids", "attention_mask", "token_type_ids"):
                batch[name][:, 16:] = 0
            yield batch

    _loaded(change)


def evaluation_reversed() -> None:
    """Batches of the evaluation are gathered last one first."""
    _loaded(lambda make, rows, size, device: iter(list(make(rows, size, device))[::-1]))


def evaluation_labels_mapped() -> None:
    """Evaluation maps the two classes the other way."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            yield {**batch, "labels": 1 - batch["labels"]}

    _loaded(change)


def weights_before_the_last_update() -> None:
    """Evaluation takes weights that lag one update behind."""
    lagging: dict[str, Any] = {}

    def wrap(step: Any) -> Any:
        def stepped(self: Any, *args: Any) -> Any:
            lagging.clear()
            lagging.update({name: value.detach().clone() for name, value in self.bare.named_parameters()})
            return step(self, *args)

        return stepped

    wrap_method(engine.Engine, "step", wrap)

    def evaluated(evaluate: Any) -> Any:
        def run(model: Any, *args: Any, **rest: Any) -> Any:
            kept = {name: value.detach().clone() for name, value in model.named_parameters()}
            for name, value in model.named_parameters():
                value.data.copy_(lagging[name])
            try:
                return evaluate(model, *args, **rest)
            finally:
                for name, value in model.named_parameters():
                    value.data.copy_(kept[name])

        return run

    replace_everywhere("evaluate", evaluated, among=("probe", "experiment"))


def evaluated_without_mask() -> None:
    """Evaluation lets the model look at padding."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            yield {**batch, "attention_mask": torch.ones_like(batch["attention_mask"])}

    _loaded(change)
