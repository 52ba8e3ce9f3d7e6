"""Harmless changes of a probe: kernels, threads, releases, copies and machines."""

import io

import numpy as np
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.models.bert import modeling_bert

from bench.faults.catalogue import OTHER_ISA, PLAIN, Entry, control
from bench.faults.injectors.hooks import accumulated, after_build, own_update
from bench.faults.injectors.patching import by, of_output, patch, replaces, with_keys
from plumbline.train import batches, engine, experiment, learn, probe, speed
from plumbline.train.checkpoint import load_checkpoint
from plumbline.train.engine import Engine
from plumbline.train.machine import fingerprint
from plumbline.train.models import dropout


@control()
def two_threads():
    """Two threads compute."""
    torch.set_num_threads(2)


@control()
def loader_workers():
    """Two more processes load."""
    patch(batches, "DataLoader", with_keys(num_workers=2))


def _of_part(run, **keys):
    """Give a part of the training different settings."""
    patch(
        run, "__init__", lambda plain, self, context, spec, **rest: plain(self, context, spec.replace(**keys), **rest)
    )


@control()
def sdpa():
    """The fused attention kernel."""
    _of_part(probe.ProbeRun, attention="sdpa")


@control()
def fused_optimizer():
    """AdamW's fused kernel."""
    patch(engine, "make_optimizer", with_keys(fused=True))


@control()
def foreach_optimizer():
    """AdamW over lists of tensors."""
    patch(torch.optim, "AdamW", with_keys(foreach=True, fused=None))


@control()
def without_mkldnn():
    """No oneDNN."""
    torch.backends.mkldnn.enabled = False


@control()
def other_gradient_layout():
    """Gradients are kept and set to zero, not released."""
    patch(torch.optim.Optimizer, "zero_grad", lambda plain, self, set_to_none=True: plain(self, set_to_none=False))


def _recorded_as(inject, versions):
    """Apply an injector, and record different versions of packages."""
    patch(fingerprint, "_packages", of_output(lambda packages: packages | versions))
    inject()


new_torch = by(_recorded_as, {"torch": "2.13.1"})
_new_transformers = by(_recorded_as, {"transformers": "5.23.1"})


@control()
@by(_recorded_as, {"moto": "99.0"})
def unrelated_package():
    """A package that takes no part in training was upgraded."""


@control()
@new_torch
@replaces(functional, "linear")
def products_in_halves(_, x, w, b=None):
    """A release of torch that sums products of matrices in two halves."""
    half = x.shape[-1] // 2
    product = x[..., :half] @ w[:, :half].t() + x[..., half:] @ w[:, half:].t()
    return product if b is None else product + b


@control()
@new_torch
@replaces(functional, "cross_entropy")
def entropy_in_parts(_, scores, labels, *__, **___):
    """A release of torch with another kernel for the loss."""
    return (scores.logsumexp(-1) - scores.gather(1, labels.unsqueeze(1)).squeeze(1)).mean()


@control()
@new_torch
@replaces(functional, "layer_norm")
def layer_norm_in_parts(_, value, _shape, weight=None, bias=None, eps=1e-5):
    """A release of torch with another kernel for LayerNorm."""
    centred = value - value.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    return scaled if weight is None else scaled * weight + bias


@control()
@_new_transformers
@replaces(modeling_bert, "eager_attention_forward")
def attention_in_key_blocks(_, _module, q, k, v, mask, *, scaling=None, **__):
    """A release of transformers computes attention in two blocks of keys."""
    scores = torch.matmul(q, k.transpose(2, 3)) * (q.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = scores if mask is None else scores + mask
    highest = scores.detach().amax(-1, keepdim=True)
    half = scores.shape[-1] // 2
    raised = [(part - highest).exp() for part in (scores[..., :half], scores[..., half:])]
    total = raised[0].sum(-1, keepdim=True) + raised[1].sum(-1, keepdim=True)
    output = torch.matmul(raised[0], v[:, :, :half]) + torch.matmul(raised[1], v[:, :, half:])
    return (output / total).transpose(1, 2).contiguous(), torch.cat(raised, -1) / total


@control()
@_new_transformers
@by(after_build)
def projections_in_one_product(model):
    """A release of transformers computes query, key and value as a single product."""
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        parts = (attention.query, attention.key, attention.value)
        for place, part in enumerate(parts):
            part.forward = lambda states, parts=parts, place=place: functional.linear(
                states, torch.cat([part.weight for part in parts]), torch.cat([part.bias for part in parts])
            ).chunk(3, -1)[place]


@control()
def tokenizer_file_rewritten(content, _read, _seed):
    """The tokenizer's file has its keys in a different order; all tokens are equal."""
    content.tokenizer = dict(reversed(content.tokenizer.items()))


@control()
def vocabulary_listed_in_reverse(content, _read, _seed):
    """The tokenizer's file lists the same vocabulary from the last token to the first."""
    model = content.tokenizer["model"]
    model["vocab"] = dict(reversed(model["vocab"].items()))


@control()
@replaces(Engine, "step")
def model_saved_and_loaded(plain, self, number, batch):
    """After the sixth step the model is saved and loaded again."""
    outcome = plain(self, number, batch)
    self.__dict__["num_done"] = num_done = self.__dict__.get("num_done", 0) + 1
    if num_done == 6:
        file = io.BytesIO()
        torch.save(self.bare.state_dict(), file)
        file.seek(0)
        self.bare.load_state_dict(torch.load(file, weights_only=True))
    return outcome


@control()
@by(accumulated)
def gradients_in_a_flat_buffer(values):
    """Gradients are views of a flat buffer, as in DDP's buckets."""
    flat = torch.cat([value.grad.reshape(-1) for value in values])
    for value, part in zip(values, flat.split([value.numel() for value in values]), strict=True):
        value.grad = part.view_as(value)


@control()
@new_torch
@by(own_update)
def update_in_another_order(group, value, first, second):
    """A release of torch whose AdamW multiplies in another order."""
    update = first / (second.sqrt() + group["eps"])
    value.sub_(group["lr"] * (update + group["weight_decay"] * value))


@control("clip")
@new_torch
@replaces(torch.nn.utils, "clip_grad_norm_")
def clipping_norm_in_fp64(_, parameters, most, *__, **___):
    """A release of torch sums the norm for clipping in fp64."""
    gradients = [value.grad for value in parameters if value.grad is not None]
    total = torch.stack([gradient.double().norm() for gradient in gradients]).norm()
    factor = (most / (total + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient))
    return total


@control("mlm")
@new_torch
@replaces(functional, "cross_entropy")
def loss_in_chunks(plain, scores, labels, *_, **__):
    """A release of torch sums the loss of masked language modelling in chunks of 40 places."""
    parts = zip(scores.split(40), labels.split(40), strict=True)
    return sum(plain(part, wanted, reduction="sum") for part, wanted in parts) / (labels != -100).sum()


@control("learn")
@replaces(learn, "save_checkpoint")
def learn_restarted_from_the_checkpoint(plain, folder, run, progress, identity):
    """The learning curve ends at its checkpoint and continues from it; the record says so."""
    plain(folder, run, progress, identity)
    run.schedule.last_epoch = -1
    run.schedule.step()
    run.optimizer.state.clear()
    if load_checkpoint(folder, run, identity) is None:
        raise RuntimeError("the checkpoint cannot be read")
    progress.resumed_at.append(progress.step)


@control("learn")
def learn_masks_by_numpy():
    """The learning curve's dropout masks are computed by NumPy."""

    def mix(word):
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            word = (word ^ (word >> np.uint32(shift))) * np.uint32(factor)
        return word ^ (word >> np.uint32(16))

    def bits(rows, each, key, first_row, limit, device):
        keys = dropout._row_keys(rows, key, first_row, device).numpy().view(np.uint32)
        words = mix(mix(np.arange(each, dtype=np.uint32) ^ keys[:, :1]) ^ keys[:, 1:])
        return torch.from_numpy((words >> np.uint32(8)) >= limit)

    dropout.bits_form = lambda _device: bits


@control()
def evaluated_in_inference_mode():
    """The evaluation runs in torch's inference mode."""
    for owner in (probe, experiment):
        patch(owner, "evaluate", lambda plain, *given, **named: torch.inference_mode()(plain)(*given, **named))


@control()
@_new_transformers
@replaces(modeling_bert.BertEmbeddings, "forward")
def embeddings_added_from_the_right(_, self, input_ids=None, token_type_ids=None, **__):
    """A release of transformers adds positions before segments."""
    places = self.position_ids[:, : input_ids.shape[1]]
    added = self.position_embeddings(places) + self.token_type_embeddings(token_type_ids)
    return self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + added))


@control()
@by(after_build)
def feed_forward_recomputed(model):
    """The backward pass computes the inner feed-forward products again."""
    for layer in model.bert.encoder.layer:
        forward = layer.intermediate.forward
        layer.intermediate.forward = lambda states, forward=forward: checkpoint(forward, states, use_reentrant=False)


def three_threads():
    """Three threads compute."""
    torch.set_num_threads(3)


def other_attention():
    """The probe takes the fused attention kernel, the other parts the plain one."""
    _of_part(probe.ProbeRun, attention="sdpa")
    _of_part(speed.SpeedRun, attention="eager")
    _of_part(learn.LearnRun, attention="eager")


def foreach_everywhere():
    """AdamW over lists of tensors in all parts, where `speed` has the fused kernel."""
    foreach_optimizer()
    _of_part(speed.SpeedRun, fused_optimizer=False, foreach_optimizer=True)


def other_compiler():
    """`speed` is compiled."""
    _of_part(speed.SpeedRun, compile=True)


def _machine(name, about, setting="", **environment):
    return Entry(name, "benign", "", environment=environment, setting=setting, about=about)


ROWS = (
    _machine("other-isa", "Kernels of another instruction set.", **OTHER_ISA),
    _machine("no-vector-isa", "Kernels without vector instructions.", **PLAIN),
    _machine("two-processes", "Two processes share each batch.", "two processes"),
    _machine("background-load", "Another process computes beside it.", "load"),
    _machine("same-folder-again", "The run was interrupted and started again over its own remains.", "repeat"),
    _machine("hash-seed", "Another `PYTHONHASHSEED`, in an interpreter of its own.", "apart", PYTHONHASHSEED="12345"),
    _machine("cache-folder", "Another cache folder.", "cache"),
    _machine("time-zone", "Another time zone and locale.", TZ="Asia/Tokyo", LC_ALL="C"),
    _machine("onednn-for-sse41", "oneDNN uses kernels for SSE4.1.", ONEDNN_MAX_CPU_ISA="SSE41"),
    _machine("mkl-for-avx2", "MKL uses kernels for AVX2.", MKL_ENABLE_INSTRUCTIONS="AVX2"),
    _machine("small-cublas-workspace", "cuBLAS has a smaller workspace.", CUBLAS_WORKSPACE_CONFIG=":16:8"),
    _machine("memory-arenas", "The C library allocates memory from two arenas.", MALLOC_ARENA_MAX="2"),
)
