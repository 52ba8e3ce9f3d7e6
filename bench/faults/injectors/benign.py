"""Harmless changes of a probe: kernels, threads, releases, copies and machines."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.models.bert import modeling_bert

from bench.faults.catalogue import OTHER_ISA, PLAIN, Entry, control
from bench.faults.injectors.hooks import LEARN, accumulated, clip, entropy, own_update
from bench.faults.injectors.patching import after_build, replace_everywhere, wrap_method
from bench.faults.world import Content
from plumbline.train import batches, engine, learn, probe, speed
from plumbline.train.checkpoint import load_checkpoint
from plumbline.train.machine import fingerprint
from plumbline.train.models import dropout


@control()
def two_threads() -> None:
    """Two threads compute."""
    torch.set_num_threads(2)


@control()
def loader_workers() -> None:
    """Two more processes load."""
    wrap_method(
        batches, "DataLoader", lambda loader: lambda *args, **kwargs: loader(*args, **{**kwargs, "num_workers": 2})
    )


@control()
def sdpa() -> None:
    """The fused attention kernel."""
    wrap_method(
        probe.ProbeRun,
        "__init__",
        lambda init: lambda self, context, spec, **rest: init(self, context, spec.replace(attention="sdpa"), **rest),
    )


@control()
def fused_optimizer() -> None:
    """AdamW's fused kernel."""
    replace_everywhere(
        "make_optimizer",
        lambda make: lambda model, spec, **rest: make(model, spec, **{**rest, "fused": True}),
        among=("engine",),
    )


@control()
def foreach_optimizer() -> None:
    """AdamW over lists of tensors."""
    wrap_method(
        torch.optim,
        "AdamW",
        lambda adam: lambda *args, **kwargs: adam(*args, **{**kwargs, "foreach": True, "fused": None}),
    )


@control()
def without_mkldnn() -> None:
    """No oneDNN."""
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


@control()
def other_gradient_layout() -> None:
    """Gradients are kept and set to zero, not released."""
    wrap_method(
        torch.optim.Optimizer,
        "zero_grad",
        lambda zero: lambda self, set_to_none=True: zero(self, set_to_none=False),
    )


@control()
def unrelated_package() -> None:
    """A package that takes no part in training was upgraded."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"moto": "99.0"})


def new_release() -> None:
    """Record a different version of torch."""
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"torch": "2.13.1"})


@control()
def products_in_halves() -> None:
    """A release of torch that sums products of matrices in two halves."""
    new_release()

    def halves(x: Any, w: Any, b: Any = None) -> Any:
        half = x.shape[-1] // 2
        product = x[..., :half] @ w[:, :half].t() + x[..., half:] @ w[:, half:].t()
        return product if b is None else product + b

    functional.linear = halves


@control()
def entropy_in_parts() -> None:
    """A release of torch with another kernel for the loss."""
    new_release()

    def entropy(scores: Any, labels: Any, *_args: Any, **_rest: Any) -> Any:
        return (scores.logsumexp(-1) - scores.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()

    functional.cross_entropy = entropy


@control()
def layer_norm_in_parts() -> None:
    """A release of torch with another kernel for LayerNorm."""
    new_release()

    def norm(value: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        centred = value - value.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
        return scaled if weight is None else scaled * weight + bias

    functional.layer_norm = norm


def _new_transformers() -> None:
    wrap_method(fingerprint, "_packages", lambda read: lambda: read() | {"transformers": "5.23.1"})


@control()
def attention_in_key_blocks() -> None:
    """A release of transformers computes attention in two blocks of keys."""
    _new_transformers()

    def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: Any = None, **_rest: Any) -> Any:
        scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
        scores = scores if mask is None else scores + mask
        highest = scores.detach().amax(-1, keepdim=True)
        half = scores.shape[-1] // 2
        raised = [(part - highest).exp() for part in (scores[..., :half], scores[..., half:])]
        total = raised[0].sum(-1, keepdim=True) + raised[1].sum(-1, keepdim=True)
        output = torch.matmul(raised[0], v[:, :, :half]) + torch.matmul(raised[1], v[:, :, half:])
        return (output / total).transpose(1, 2).contiguous(), torch.cat(raised, -1) / total

    modeling_bert.eager_attention_forward = attend


@control()
def projections_in_one_product() -> None:
    """A release of transformers computes query, key and value as a single product."""
    _new_transformers()

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            attention = layer.attention.self
            parts = (attention.query, attention.key, attention.value)
            for place, part in enumerate(parts):
                part.forward = lambda states, parts=parts, place=place: functional.linear(
                    states, torch.cat([one.weight for one in parts]), torch.cat([one.bias for one in parts])
                ).chunk(3, -1)[place]

    after_build(change)


@control()
def tokenizer_file_rewritten(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer's file has its keys in a different order; all tokens are equal."""
    content.tokenizer = dict(reversed(content.tokenizer.items()))


@control()
def vocabulary_listed_in_reverse(content: Content, read: list[int], seed: int) -> None:
    """The tokenizer's file lists the same vocabulary from the last token to the first."""
    model = content.tokenizer["model"]
    model["vocab"] = dict(reversed(model["vocab"].items()))


def _each_step(change: Any) -> None:
    """Do more work after each step."""

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            outcome = step(self, number, batch)
            change(self)
            return outcome

        return stepped

    wrap_method(engine.Engine, "step", wrap)


@control()
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


@control()
def gradients_in_a_flat_buffer() -> None:
    """Gradients are views of a flat buffer, as in DDP's buckets."""

    def change(_run: Any, values: list[Any]) -> None:
        flat = torch.cat([value.grad.reshape(-1) for value in values])
        at = 0
        for value in values:
            value.grad = flat[at : at + value.numel()].view_as(value)
            at += value.numel()

    accumulated(change)


@control()
def update_in_another_order() -> None:
    """A release of torch whose AdamW multiplies in another order."""
    new_release()

    def rule(group: Any, value: Any, first: Any, second: Any) -> None:
        update = first / (second.sqrt() + group["eps"])
        value.sub_(group["lr"] * (update + group["weight_decay"] * value))

    own_update(rule)


@control("clip")
def clipping_norm_in_fp64() -> None:
    """A release of torch sums the norm for clipping in fp64."""
    new_release()

    def clipped(parameters: Any, most: float, *_args: Any, **_rest: Any) -> Any:
        gradients = [value.grad for value in parameters if value.grad is not None]
        total = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
        factor = (most / (total + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient))
        return total

    clip(lambda _plain: clipped)


@control("mlm")
def loss_in_chunks() -> None:
    """A release of torch sums the loss of masked language modelling in chunks of 40 places."""
    new_release()

    def wrap(entropy: Any) -> Any:
        def chunked(scores: Any, labels: Any, *args: Any, **rest: Any) -> Any:
            parts = zip(scores.split(40), labels.split(40), strict=True)
            total = sum(entropy(part, wanted, reduction="sum") for part, wanted in parts)
            return total / (labels != -100).sum()

        return chunked

    entropy(wrap)


@control("learn")
def learn_restarted_from_the_checkpoint() -> None:
    """The learning curve ends at its checkpoint and continues from it; the record says so."""

    def wrap(save: Any) -> Any:
        def saved(folder: Any, run: Any, progress: Any, identity: str) -> None:
            save(folder, run, progress, identity)
            run.schedule.last_epoch = -1
            run.schedule.step()
            run.optimizer.state.clear()
            if load_checkpoint(folder, run, identity) is None:
                raise RuntimeError("the checkpoint cannot be read")
            progress.resumed_at.append(progress.step)

        return saved

    replace_everywhere("save_checkpoint", wrap, among=LEARN)


@control("learn")
def learn_masks_by_numpy() -> None:
    """The learning curve's dropout masks are computed by NumPy."""

    def mix(word: Any) -> Any:
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
        return word ^ (word >> np.uint32(16))

    def bits(rows: int, each: int, key: int, first_row: int, limit: int, device: Any) -> Any:  # noqa: PLR0917
        keys = dropout._row_keys(rows, key, first_row, device).numpy().view(np.uint32)
        words = mix(mix(np.arange(each, dtype=np.uint32) ^ keys[:, :1]) ^ keys[:, 1:])
        return torch.from_numpy((words >> np.uint32(8)) >= limit)

    dropout.bits_form = lambda _device: bits


def _evaluated(within: Any) -> None:
    """Wrap the evaluation; `within` gives what it runs in."""

    def wrap(evaluate: Any) -> Any:
        def evaluated(model: Any, *args: Any, **kwargs: Any) -> Any:
            with within(model):
                return evaluate(model, *args, **kwargs)

        return evaluated

    replace_everywhere("evaluate", wrap, among=("probe", "experiment"))


@control()
def evaluated_in_inference_mode() -> None:
    """The evaluation runs in torch's inference mode."""
    _evaluated(lambda _model: torch.inference_mode())


@control()
def embeddings_added_from_the_right() -> None:
    """A release of transformers adds positions before segments."""
    _new_transformers()

    def forward(self: Any, input_ids: Any = None, token_type_ids: Any = None, **_rest: Any) -> Any:
        places = self.position_ids[:, : input_ids.shape[1]]
        added = self.position_embeddings(places) + self.token_type_embeddings(token_type_ids)
        return self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + added))

    modeling_bert.BertEmbeddings.forward = forward


@control()
def feed_forward_recomputed() -> None:
    """The backward pass computes the inner feed-forward products again."""

    def change(model: Any) -> None:
        for layer in model.bert.encoder.layer:
            forward = layer.intermediate.forward
            layer.intermediate.forward = lambda states, forward=forward: checkpoint(
                forward, states, use_reentrant=False
            )

    after_build(change)


def three_threads() -> None:
    """Three threads compute."""
    torch.set_num_threads(3)


def _with(init: Any, **keys: object) -> Any:
    return lambda self, context, spec, **rest: init(self, context, spec.replace(**keys), **rest)


def other_attention() -> None:
    """The probe takes the fused attention kernel, the other parts the plain one."""
    wrap_method(probe.ProbeRun, "__init__", lambda init: _with(init, attention="sdpa"))
    wrap_method(speed.SpeedRun, "__init__", lambda init: _with(init, attention="eager"))
    wrap_method(learn.LearnRun, "__init__", lambda init: _with(init, attention="eager"))


def foreach_everywhere() -> None:
    """AdamW over lists of tensors in all parts, where `speed` has the fused kernel."""
    foreach_optimizer()
    wrap_method(speed.SpeedRun, "__init__", lambda init: _with(init, fused_optimizer=False, foreach_optimizer=True))


def other_compiler() -> None:
    """`speed` is compiled."""
    wrap_method(speed.SpeedRun, "__init__", lambda init: _with(init, compile=True))


ROWS = (
    Entry("other-isa", "benign", "", environment=OTHER_ISA, about="Kernels of another instruction set."),
    Entry("no-vector-isa", "benign", "", environment=PLAIN, about="Kernels without vector instructions."),
    Entry("two-processes", "benign", "", setting="two processes", about="Two processes share each batch."),
    Entry("background-load", "benign", "", setting="load", about="Another process computes beside it."),
    Entry(
        "same-folder-again", "benign", "", setting="repeat",
        about="The run was interrupted and started again over its own remains.",
    ),
    Entry(
        "hash-seed", "benign", "", environment={"PYTHONHASHSEED": "12345"}, setting="apart",
        about="Another `PYTHONHASHSEED`, in an interpreter of its own.",
    ),
    Entry("cache-folder", "benign", "", setting="cache", about="Another cache folder."),
    Entry(
        "time-zone", "benign", "", environment={"TZ": "Asia/Tokyo", "LC_ALL": "C"},
        about="Another time zone and locale.",
    ),
    Entry(
        "onednn-for-sse41", "benign", "", environment={"ONEDNN_MAX_CPU_ISA": "SSE41"},
        about="oneDNN uses kernels for SSE4.1.",
    ),
    Entry(
        "mkl-for-avx2", "benign", "", environment={"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        about="MKL uses kernels for AVX2.",
    ),
    Entry(
        "small-cublas-workspace", "benign", "", environment={"CUBLAS_WORKSPACE_CONFIG": ":16:8"},
        about="cuBLAS has a smaller workspace.",
    ),
    Entry(
        "memory-arenas", "benign", "", environment={"MALLOC_ARENA_MAX": "2"},
        about="The C library allocates memory from two arenas.",
    ),
)  # fmt: skip
