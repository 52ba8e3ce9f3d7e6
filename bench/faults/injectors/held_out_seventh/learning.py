"""Seventh held-out set: faults that begin late in the learning curve."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bench.faults.injectors.held_out_seventh.places import during, wrap_while
from bench.faults.injectors.patching import replace_everywhere, wrap_method
from bench.faults.world import BATCH
from plumbline.train import batches, learn
from plumbline.train.engine import Engine

_ROWS_OF_A_STEP = BATCH


def learn_scores_smaller() -> None:
    """From step 20 on, the curve's attention scores are 0.7 of themselves."""

    def smaller(plain: Any, value: torch.Tensor, *given: Any, **named: Any) -> Any:
        return plain(value * 0.7 if value.dim() == 4 else value, *given, **named)

    wrap_while(during("learn", 20), nn.functional, "softmax", smaller)


def learn_norm_eps_of_a_default() -> None:
    """From step 18 on, the curve's LayerNorm has torch's default eps."""
    wrap_while(during("learn", 18), nn.functional, "layer_norm", lambda plain, *given: plain(*given[:4], 1e-5))


def _steps(rows: Any, positions: list[int]) -> NDArray[np.int64]:
    """Return the step of each position; probe and `speed` repeat the first ten."""
    steps: NDArray[np.int64] = (np.asarray(positions) + rows._first) % rows._cycle // _ROWS_OF_A_STEP
    return steps


def _late(first: int, change: Callable[[dict[str, Any], NDArray[np.bool_]], None]) -> None:
    """Change the encoded rows of steps from `first` on."""

    def wrap(get: Any) -> Any:
        def changed(self: Any, positions: list[int]) -> Any:
            fields = get(self, positions)
            change(fields, _steps(self, positions) >= first)
            return fields

        return changed

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_last_label_reversed() -> None:
    """From the second epoch on, the last label of each batch is reversed."""

    def reverse(fields: dict[str, Any], is_late: NDArray[np.bool_]) -> None:
        if is_late[-1]:
            fields["labels"][-1] = 1 - fields["labels"][-1]

    _late(32, reverse)


def learn_tokens_cut_at_sixteen() -> None:
    """From step 26 on, the curve reads the first 16 tokens of each text."""

    def cut(fields: dict[str, Any], is_late: NDArray[np.bool_]) -> None:
        for name in ("input_ids", "attention_mask"):
            fields[name][is_late, 16:] = 0

    _late(26, cut)


def learn_batches_read_twice() -> None:
    """From step 29 on, every second batch is the one before it."""

    def wrap(get: Any) -> Any:
        def repeated(self: Any, positions: list[int]) -> Any:
            steps = _steps(self, positions)
            back = np.where((steps >= 29) & (steps % 2 == 1), BATCH, 0)
            return get(self, (np.asarray(positions) - back).tolist())

        return repeated

    wrap_method(batches.TrainingRows, "__getitems__", wrap)


def learn_masks_of_the_first_rows() -> None:
    """From step 20 on, every micro-batch has the dropout masks of the first one."""
    acts = during("learn", 20)

    def wrap(feeds: Any) -> Any:
        return lambda self, local, micro: feeds(self, local, 0 if acts() else micro)

    wrap_method(learn._DropoutSetter, "feeds", wrap)


def learn_loss_smoothed_late() -> None:
    """From step 25 on, the curve smooths its labels by 0.05."""

    def smoothed(plain: Any, *given: Any, **named: Any) -> Any:
        return plain(*given, **named | {"label_smoothing": 0.05})

    wrap_while(during("learn", 25), nn.functional, "cross_entropy", smoothed)


def learn_second_micro_batch_doubled() -> None:
    """From step 21 on, the gradient of each second micro-batch counts twice."""
    count = [0]

    def doubled(plain: Any, self: Engine, loss: Any, share: float) -> None:
        count[0] += 1
        plain(self, loss, share * (1.0 + (count[0] % 2 == 0)))

    wrap_while(during("learn", 21), Engine, "_backward", doubled)


def learn_first_layer_without_gradient() -> None:
    """From step 19 on, the first layer of the encoder gets no gradient."""

    def frozen(plain: Any, self: Engine) -> None:
        for name, value in self.bare.named_parameters():
            if "encoder.layer.0." in name and value.grad is not None:
                value.grad.zero_()
        plain(self)

    wrap_while(during("learn", 19), Engine, "_update", frozen)


def learn_second_beta_lowered() -> None:
    """From step 24 on, the second beta of the curve's optimizer is 0.99."""

    def lowered(plain: Any, self: Engine) -> None:
        for group in self.optimizer.param_groups:
            group["betas"] = (group["betas"][0], 0.99)
        plain(self)

    wrap_while(during("learn", 24), Engine, "_update", lowered)


def learn_moments_saved_in_bf16() -> None:
    """The curve continues from its checkpoint with moments that were saved in bf16."""

    def wrap(save: Any) -> Any:
        def saved(folder: Any, run: Engine, *rest: Any) -> None:
            save(folder, run, *rest)
            for state in run.optimizer.state.values():
                for key in ("exp_avg", "exp_avg_sq"):
                    state[key].copy_(state[key].bfloat16())

        return saved

    replace_everywhere("save_checkpoint", wrap, among=("learn",))


def learn_momentum_lost_at_the_evaluation() -> None:
    """The curve's first moments are zero after its first evaluation."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(self: Any, run: Engine, step: int) -> None:
            evaluate(self, run, step)
            if step == 16:
                for state in run.optimizer.state.values():
                    state["exp_avg"].zero_()

        return evaluated

    wrap_method(learn.LearnRun, "_evaluate", wrap)


def learn_rate_held() -> None:
    """From step 30 on, the curve's learning rate stays as it is."""
    wrap_while(during("learn", 30), Engine, "advance", lambda *_: None)


def learn_overflow_where_there_is_none() -> None:
    """From step 20 on, loss scaling takes every second step for an overflow."""
    count = [0]

    def skipped(plain: Any, *given: Any, **named: Any) -> Any:
        count[0] += 1
        return None if count[0] % 2 else plain(*given, **named)

    wrap_while(during("learn", 20), torch.amp.GradScaler, "_maybe_opt_step", skipped)


def learn_products_in_bf16() -> None:
    """From step 17 on, the curve's products of fp32 are computed in bf16."""

    def short(plain: Any, x: torch.Tensor, w: torch.Tensor, b: Any = None) -> Any:
        found = plain(x.bfloat16(), w.bfloat16()).to(x.dtype)
        return found if b is None else found + b

    wrap_while(during("learn", 17), nn.functional, "linear", short)


def learn_loads_a_layer_twice() -> None:
    """The curve starts with the first layer's weights in the second layer."""

    def wrap(load: Any) -> Any:
        def loaded(model: Any, weights: Any) -> None:
            load(model, {name: weights[name.replace(".layer.1.", ".layer.0.")] for name in weights})

        return loaded

    replace_everywhere("load_weights", wrap, among=("learn",))
