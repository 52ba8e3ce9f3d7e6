"""One step of a captured loop in full: tensors by stage and name, proofs, and what happened to the gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from plumbline.schema.captured import Exchange
from plumbline.schema.evidence import Tap
from plumbline.schema.proof import Proof
from plumbline.schema.spec import Precision
from plumbline.schema.stage import TAPPED, Stage
from plumbline.train.capture.loop import Loop
from plumbline.train.capture.loss import DefinedLoss
from plumbline.train.digests import digest_tensors, finite
from plumbline.train.numerics import read_settings
from plumbline.train.optimizers import group_rates, held_by
from plumbline.train.proof.distance import Found, Lost, changed_state, read
from plumbline.train.proof.isolation import replaced_function
from plumbline.train.proof.modules import CONVOLUTIONS, ModuleProofs
from plumbline.train.proof.repeated import chances
from plumbline.train.proof.update import UpdateCheck
from plumbline.train.ranks import Ranks
from plumbline.train.watch.calls import ModuleCalls
from plumbline.train.watch.summaries import TensorSummary, read_rows

_ONE_FACTOR = 1e-4
"""Largest deviation from a single factor that rounding explains, buckets in bf16 apart."""


class RecordedStep:
    """Hooks on modules and parameters for one step, and what they saw."""

    def __init__(self, run: Loop, step: int, *, is_accumulating: bool) -> None:
        """Prepare; `is_accumulating`: no optimizer ran since the step before, whose gradients stay on purpose."""
        self._run, self.step, self._is_accumulating = run, step, is_accumulating
        self._is_proven = not run.is_rerun  # no imposed value is what its definition gives
        self._loss = DefinedLoss(run, run.definition) if run.definition is not None and self._is_proven else None
        self._names: dict[torch.Tensor, str] = {
            value: name for name, value in run.model.named_parameters() if value.requires_grad
        }
        self._own: dict[torch.Tensor, torch.Tensor] = {}
        self._arrived: set[torch.Tensor] = set()
        self._left: dict[str, None] = {}
        """Parameters whose gradient was left of an earlier step."""
        self._opened: list[tuple[Stage, str, str, bool, TensorSummary]] = []
        self._found: list[Found] = []
        self._modules: ModuleProofs | None = None
        self._unproven = ""
        """Why nothing is proven of modules."""
        self._updates: dict[torch.optim.Optimizer, UpdateCheck] = {}
        self._is_skipped = False
        self._calls = ModuleCalls(self._see)
        self.precision: Precision = "fp32"
        self.taps: list[Tap] = []
        self.sketches: list[NDArray[np.float64]] = []
        self.proof: Proof | None = None
        self.exchange: Exchange | None = None
        self.marks: dict[str, tuple[str, str]] = {}
        """By parameter, digests of its own and of its seen gradient, for processes that hold parts of one model."""
        self.portable_loss: float | None = None
        self.gradient_norm: float | None = None
        self.seen_norm: float | None = None
        self.unheld: list[str] = []
        self.evaluating: list[str] = []

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hook modules and parameters within the context."""
        with ExitStack() as hooks:
            run, name = self._run, replaced_function()
            if not run.is_compiled:
                self._unproven = f"{name} is replaced" if name else may_round(run.model, run.ranks.device)
                if not self._unproven and self._is_proven:
                    # Each process shows the gradients that its own backward pass left.
                    alone = Ranks(device=run.ranks.device)
                    self._modules = ModuleProofs(run.model, alone, self._found, is_foreign=True)
                    hooks.callback(self._modules.close)
                hooks.enter_context(self._calls.hook(run.model))
                self._calls.forward_done()
            for value, name in self._names.items():
                hooks.enter_context(value.register_hook(partial(self._arrives, value, name)))
                hooks.enter_context(value.register_post_accumulate_grad_hook(self._keep))
            yield

    def _arrives(self, parameter: torch.Tensor, name: str, _gradient: torch.Tensor) -> None:
        """Note a gradient of an earlier step that is left when the first one of this step arrives."""
        with self._run.aside("a gradient"):
            is_first, left = parameter not in self._arrived, parameter.grad
            self._arrived.add(parameter)
            is_clear = left is None or (left.layout == torch.strided and not bool(left.any()))
            if self._modules is not None:
                self._modules.arrives(parameter, is_clear=is_clear)
            if is_clear:
                self._left.pop(name, None)  # cleared after another model's loss had reached it
            elif is_first and self.step and left is not None and left.layout == torch.strided:
                self._left[name] = None

    @property
    def stale(self) -> str:
        """Return the first parameter whose update contains a gradient of an earlier step, or ""."""
        return "" if self._is_accumulating else next(iter(self._left), "")

    def _keep(self, parameter: torch.Tensor) -> None:
        with self._run.aside("a gradient"):
            if parameter.grad is not None and parameter.grad.layout == torch.strided:
                self._own[parameter] = parameter.grad.detach().clone()

    def moved(self) -> None:
        """Note that the weights changed between this step's update and the next step."""
        if self.proof is not None:
            self.proof = self.proof.replace(errors=(changed_state("weights"), *self.proof.errors))

    def feeds(self) -> None:
        """Start a forward pass; names of modules go on counting within a step."""
        self.evaluating = [name or "model" for name, each in self._run.model.named_modules() if not each.training]
        self.precision = _format(self._run.model, self._run.ranks.device)
        self._calls.feeds(again=True)
        if self._modules is not None:
            self._modules.feeds(self.precision)

    def forward_done(self) -> None:
        """End a forward pass."""
        self._calls.forward_done()
        if self._modules is not None:
            self._modules.forward_done()

    def _see(self, name: str, module: nn.Module, _inputs: Any, value: torch.Tensor) -> None:
        with self._run.aside("a module's output"):
            self._open("forward", name, value, module)

    def _open(self, stage: Stage, name: str, value: torch.Tensor, module: nn.Module | None = None) -> None:
        """Summarise a module's output, or a parameter or buffer of the module in its name."""
        if value.layout == torch.strided:
            owner = self._run.model.get_submodule(name.rpartition(".")[0]) if module is None else module
            is_leaf = module is None or next(module.children(), None) is None
            summary = TensorSummary(value, value.shape, unsigned=False, sketched=True)
            summary.add(value.detach().contiguous())
            self._opened.append((stage, name, type(owner).__name__, is_leaf, summary))

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare own with seen gradients, prove the own ones, and copy the optimizer's state."""
        held = set(held_by(optimizer))
        # Of several optimizers, each shows the gradients of its own parameters.
        is_alone = len(self._run.optimizers) == 1
        own = {value: each for value, each in self._own.items() if is_alone or value in held}
        if self._modules is not None:
            left = self._left if self._is_accumulating else {}
            self._modules.lost |= dict.fromkeys(left, "keeps a gradient of an earlier step")
            fresh = {value: each for value, each in own.items() if self._names[value] not in left}
            self._modules.gradients(self._names, fresh, 1.0)
        self._compare(own, {value: value.grad for value in own if value.grad is not None})
        if self._is_proven:
            self._updates[optimizer] = UpdateCheck(self._run.model, optimizer)
            self._updates[optimizer].before()

    def _compare(self, own: Mapping[torch.Tensor, torch.Tensor], seen: Mapping[torch.Tensor, torch.Tensor]) -> None:
        """Measure one factor between all processes' mean gradients and those that the optimizer sees."""
        ranks, scale = self._run.ranks, float(self._run.scaler.get_scale()) if self._run.scaler is not None else 1.0
        named = {self._names[value]: each.double() / scale for value, each in own.items() if value in seen}
        if not named or len({tuple(each) for each in ranks.gather(list(named))}) > 1:
            return
        total = {name: ranks.summed(each) for name, each in named.items()}
        mean = {name: each / ranks.world for name, each in total.items()}
        native = {self._names[value]: each.detach().double() for value, each in seen.items()}
        if self._run.parts.world > 1:
            self.marks |= {
                name: (digest_tensors({"": each}), digest_tensors({"": native[name]})) for name, each in named.items()
                if bool((each != each.reshape(-1)[:1]).any())  # an equal one of a mean's bias says nothing
            }  # fmt: skip
        units = {self._names[value]: torch.finfo(each.dtype).eps / 2 for value, each in seen.items()}
        ratio, deviation, odd = _factor(mean, native, units)
        self.gradient_norm, self.seen_norm = (_norm(each) for each in (mean, native))
        self._is_skipped = not math.isfinite(self.gradient_norm)
        apart: list[tuple[int, str]] = []
        absent: list[int] = []
        own_equal = False
        if ranks.world > 1:
            sums = ranks.gather({name: float(each.sum()) for name, each in native.items()})
            for rank, each in enumerate(sums):
                name = next((name for name in each if each[name] != sums[0].get(name)), None)
                apart += [(rank, name)] if name is not None else []
            owned = ranks.gather({name: float(each.sum()) for name, each in named.items()})
            own_equal = bool(apart) and all(owned[rank][name] == owned[0][name] for rank, name in apart)
            without = {name: (total[name] - named[name]) / ranks.world for name in named}
            off = ranks.gather(_factor(without, native, units)[1])
            absent = [rank for rank, each in enumerate(off) if each < _ONE_FACTOR < deviation]
        is_clipped = deviation <= _ONE_FACTOR and 0 < ratio < 1 - _ONE_FACTOR
        self.exchange = Exchange(
            step=self.step, factor=finite(ratio), deviation=finite(deviation), odd=odd, apart=tuple(apart),
            absent=tuple(absent), own_equal=own_equal, max_norm=finite(self.seen_norm) if is_clipped else None,
        )  # fmt: skip

    def compare_parts(self, sides: Sequence[Mapping[str, tuple[str, str]]]) -> None:
        """Note gradients that are equal in all processes of one model, and reach their optimizers differently."""
        equal = [
            name for name, (own, _) in sides[0].items() if all(name in side and side[name][0] == own for side in sides)
        ]
        first = [next((name for name in equal if side[name] != sides[0][name]), None) for side in sides]
        differing = tuple((rank, name) for rank, name in enumerate(first) if name is not None)
        if differing and self.exchange is not None:
            self.exchange = self.exchange.replace(apart=differing, own_equal=True)

    def after_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Compare the update with its definition, and keep the updated tensors."""
        check = self._updates.get(optimizer)
        if check is not None and not self._is_skipped:
            for name, error in check.errors(group_rates(optimizer)):
                self._found.append(Found("optimizer", name, check.kind, torch.float32, 1, error))
        held = {self._names[value]: value for value in held_by(optimizer) if value in self._names}
        # Of several updates within a step, the last one counts.
        self._opened = [each for each in self._opened if each[0] != "optimizer" or each[1] not in held]
        for name, value in held.items():
            self._open("optimizer", name, value)

    def leaves(self, output: Any, given: dict[str, Any]) -> None:
        """Keep what the definition of the loss reads."""
        if self._loss is not None:
            self._loss.gives(output, given)

    def ends(self, batch: Any, loss: Any) -> None:
        """Read all tensors and errors from the device; release what holds the graph."""
        for value, name in self._names.items():
            if value in self._own:
                self._open("gradient", name, self._own[value])
        for name, value in self._run.model.named_buffers():
            if value.is_floating_point():
                self._open("optimizer", name, value)
        if self._run.optimizers:
            held = set(held_by(*self._run.optimizers))
            unheld = {self._names[value]: value for value in self._own if value not in held}
            for name, value in unheld.items():
                self._open("optimizer", name, value)
            self.unheld = list(unheld)
        self._read()
        if self._loss is not None:
            found, self.portable_loss = self._loss.found(batch, loss)
            self._found += found
            self._loss = None
        if self._is_proven:
            self._prove()
        self._own, self._opened, self._found, self._updates, self._arrived = {}, [], [], {}, set()
        self._modules = None
        chances.cache_clear()

    def _read(self) -> None:
        rows, _ = read_rows([summary for *_, summary in self._opened])
        read = sorted(zip(self._opened, rows, strict=True), key=lambda each: TAPPED.index(each[0][0]))
        for (stage, name, kind, leaf, summary), row in read:
            found = summary.read(*row)
            self.sketches.append(found.sketch)
            self.taps.append(
                Tap(
                    step=self.step, stage=stage, name=name, kind=kind, shape=found.shape, leaf=leaf,
                    dtype=str(found.dtype).removeprefix("torch."), norm=finite(found.norm), sha256=found.sha256,
                )
            )  # fmt: skip

    def _prove(self) -> None:
        listed, formless = read(self._found)
        lost, draws = (self._modules.lost, self._modules.draws.summary()) if self._modules is not None else (Lost(), ())
        lost.update(formless)
        if self._unproven:
            lost["modules"] = self._unproven
        lost.update((f"updates {place}", each.lost) for place, each in enumerate(self._updates.values()) if each.lost)
        self.proof = Proof(
            step=self.step, errors=() if self._is_skipped else tuple(listed), tensors=len(listed), draws=draws,
            lost=lost.text(), skipped=self._is_skipped,
        )  # fmt: skip


def may_round(model: nn.Module, device: torch.device) -> str:
    """Return why a GPU may round the operands of fp32 products, and so nothing is proven of them, or ""."""
    if device.type != "cuda":
        return ""
    settings = read_settings()
    convolves = any(isinstance(each, (*CONVOLUTIONS, nn.RNNBase)) for each in model.modules())
    names = ("cuda.matmul.allow_tf32", *(("cudnn.allow_tf32",) if convolves else ()))
    allowing = next((name for name in names if settings[name] is not False), "")
    return allowing and f"may compute in TF32, by torch.backends.{allowing}"


def _format(model: nn.Module, device: torch.device) -> Precision:
    """Return the shortest format in force: autocast's, or that of the weights."""
    own = {value.dtype for value in model.parameters()}
    if torch.is_autocast_enabled(device.type):
        own.add(torch.get_autocast_dtype(device.type))
    if torch.bfloat16 in own:
        return "bf16"
    return "fp16" if torch.float16 in own else "fp32"


def _norm(tensors: Mapping[str, torch.Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in tensors.values()])))


def _factor(
    own: Mapping[str, torch.Tensor], seen: Mapping[str, torch.Tensor], units: Mapping[str, float]
) -> tuple[float, float, str]:
    """Return the factor of most parameters, the largest relative distance from it, and the parameter where that is.

    A distance begins behind one rounding in the parameter's format, which is at most its unit.
    """
    names = list(own)
    dots = torch.stack([(own[name] * seen[name]).sum() for name in names])
    squares = torch.stack([own[name].square().sum() for name in names])
    ratios = (dots / squares)[squares != 0]
    ratio = float(ratios.median()) if len(ratios) else 0.0
    least = 1e-3 * max(_norm(seen), 1e-300) / len(names)
    off = torch.stack([(seen[name] - own[name] * ratio).norm() for name in names])
    shares = off / torch.stack([seen[name].norm() for name in names]).clamp_min(least)
    shares = (shares - shares.new_tensor([units[name] for name in names])).clamp_min(0.0)
    worst = int(shares.argmax())
    return ratio, float(shares[worst]), names[worst]
