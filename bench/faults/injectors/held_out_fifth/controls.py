"""Fifth held-out set: changes of code that must not be flagged and change no bit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.models.bert import modeling_bert

from bench.faults.injectors.held_out_fourth_controls import _each_step
from bench.faults.injectors.held_out_fourth_gradients import _accumulated
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from bench.faults.injectors.training import _entropy, _evaluated, _made
from plumbline.train import batches, dropout, engine, learn
from plumbline.train.checkpoint import save_checkpoint


def mask_filled_not_added() -> None:
    """Attention fills hidden scores with the smallest number instead of adding it."""

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        if mask is not None:
            scores = scores.masked_fill(mask < 0, torch.finfo(scores.dtype).min)
        weights = functional.softmax(scores, dim=-1)
        return torch.matmul(weights, v).transpose(1, 2).contiguous(), weights

    modeling_bert.eager_attention_forward = attend


def states_cloned_between_layers() -> None:
    """Each layer passes on a contiguous copy of its states."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            layer.register_forward_hook(lambda _module, _inputs, output: output.clone().contiguous())

    after_build(change)


def loader_of_plain_slices() -> None:
    """Batches come from a plain loop instead of torch's loader."""

    def plain(rows: Any, size: int, device: Any) -> Iterator[Any]:
        for at in range(0, len(rows), size):
            yield batches._collate(rows.__getitems__(list(range(at, min(at + size, len(rows))))))

    replace_everywhere("make_loader", lambda _make: plain, among=("context", "evaluation"))


def model_saved_and_loaded() -> None:
    """After the sixth step the model is saved and loaded again."""

    def change(run: Any) -> None:
        run.__dict__["num_done"] = run.__dict__.get("num_done", 0) + 1
        if run.__dict__["num_done"] == 6:
            file = io.BytesIO()
            torch.save(run.bare.state_dict(), file)
            file.seek(0)
            run.bare.load_state_dict(torch.load(file, weights_only=True))

    _each_step(change)


def gradients_in_a_flat_buffer() -> None:
    """Gradients are views of a flat buffer, as in DDP's buckets."""

    def change(_run: Any, values: list[Any]) -> None:
        flat = torch.cat([value.grad.reshape(-1) for value in values])
        at = 0
        for value in values:
            value.grad = flat[at : at + value.numel()].view_as(value)
            at += value.numel()

    _accumulated(change)


def residuals_added_in_place() -> None:
    """Residuals are added in place."""

    def forward(self: Any, states: Any, residual: Any) -> Any:
        return self.LayerNorm(self.dropout(self.dense(states)).add_(residual))

    modeling_bert.BertSelfOutput.forward = modeling_bert.BertOutput.forward = forward


def log_softmax_and_nll() -> None:
    """The loss is the negative log-likelihood of a log-softmax."""
    _entropy(
        lambda _entropy: (
            lambda scores, labels, *args, **rest: functional.nll_loss(functional.log_softmax(scores, dim=-1), labels)
        )
    )


def anomaly_mode() -> None:
    """Autograd checks each gradient for numbers that are not finite."""
    torch.autograd.set_detect_anomaly(True)


def backward_hooks_everywhere() -> None:
    """A monitor reads the gradient of each module's output."""

    def change(model: Any) -> None:
        for module in model.modules():
            if not list(module.children()) and list(module.parameters()):
                module.register_full_backward_hook(lambda _module, _inputs, outputs: None)

    after_build(change)


def evaluated_in_inference_mode() -> None:
    """The evaluation runs in torch's inference mode."""
    _evaluated(lambda _model: torch.inference_mode())


def parameters_in_reverse_order() -> None:
    """The optimizer's groups list their parameters in reverse order."""

    def change(make: Any) -> Any:
        def made(*args: Any, **rest: Any) -> Any:
            optimizer = make(*args, **rest)
            for group in optimizer.param_groups:
                group["params"].reverse()
            return optimizer

        return made

    _made(change)


def groups_split_in_halves() -> None:
    """Each group of the optimizer is split into two with equal settings."""

    def change(make: Any) -> Any:
        def made(*args: Any, **rest: Any) -> Any:
            optimizer = make(*args, **rest)
            for group in list(optimizer.param_groups):
                half = len(group["params"]) // 2
                settings = {key: value for key, value in group.items() if key != "params"}
                optimizer.param_groups.append({**settings, "params": group["params"][half:]})
                group["params"] = group["params"][:half]
            return optimizer

        return made

    _made(change)


def activations_offloaded() -> None:
    """Activations wait in NumPy arrays for the backward pass."""

    def wrap(forward: Any) -> Any:
        def hooked(self: Any, piece: Any, share: float) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(
                lambda value: value.detach().numpy().copy(), lambda array: torch.from_numpy(np.array(array))
            ):
                return forward(self, piece, share)

        return hooked

    wrap_method(engine.Engine, "_forward", wrap)


def feed_forward_recomputed() -> None:
    """The backward pass computes the inner feed-forward products again."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            forward = layer.intermediate.forward
            layer.intermediate.forward = lambda states, forward=forward: checkpoint(
                forward, states, use_reentrant=False
            )

    after_build(change)


def learn_masks_by_numpy() -> None:
    """The learning curve's dropout masks are computed by NumPy."""

    def mix(word: Any) -> Any:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
        return word ^ (word >> np.uint32(16))

    def bits(places: Any, first: Any, second: Any, limit: int) -> Any:
        words = [value.numpy().view(np.uint32) for value in (places, first, second)]
        return torch.from_numpy((mix(mix(words[0] ^ words[1]) ^ words[2]) >> np.uint32(8)) >= limit)

    dropout._bits = bits


def learn_saved_every_fifth_step() -> None:
    """The learning curve saves a checkpoint after every fifth step."""

    def wrap(after: Any) -> Any:
        def saved(self: Any, run: Any, done: int) -> None:
            after(self, run, done)
            if done % 5 == 0:
                self._progress.step = done
                save_checkpoint(self._folder, run, self._progress, self._identity)

        return saved

    wrap_method(learn.LearnRun, "_after", wrap)
