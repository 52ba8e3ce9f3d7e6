"""Proof of native steps: each tensor beside its definition in fp64, from the machine's own values at that step.

No reference and no earlier step is needed: a module's output is repeated from its own inputs, a gradient from what the
backward pass gave its module, an update from the optimizer's own state. One operation rounds once, so that nothing has
to be known of how errors grow. Where dropout drew, its mask is read from the values that it set to zero.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from plumbline.schema.proof import ORDER, Draws, Proof, ProofError, ProofStage
from plumbline.schema.tolerance import proof_limit
from plumbline.train.batches import Batch
from plumbline.train.digests import finite
from plumbline.train.engine import Engine, Observer, Observers, StepOutcome, read_losses
from plumbline.train.native_draws import Draw, NativeDraws, RepeatedDraws
from plumbline.train.summaries import aside
from plumbline.train.taps import first_tensor
from plumbline.train.trail import checksum
from plumbline.train.update import UpdateCheck

_SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MOST = 200
"""Maximum number of tensors beyond their limits that a proof lists."""


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a structure of tensors with each of them changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_mapped(entry, change) for entry in value)
    return {key: _mapped(entry, change) for key, entry in value.items()} if type(value) is dict else value


def _in_double(value: torch.Tensor) -> torch.Tensor:
    return value.detach().double() if value.is_floating_point() else value


@dataclass(eq=False)
class _Call:
    """One call of a module, with its native inputs."""

    name: str
    module: nn.Module
    inputs: tuple[Any, dict[str, Any]]
    draws: list[Draw]
    passed: dict[int, torch.Tensor] = field(default_factory=dict)
    """Expected gradients of the inputs, by place."""
    terms: torch.Tensor | None = None


@dataclass
class _Found:
    stage: ProofStage
    name: str
    kind: str
    dtype: torch.dtype
    terms: int
    error: torch.Tensor


def unit_of(dtype: torch.dtype) -> float:
    """Return the largest relative error of one rounding to `dtype`."""
    return float(torch.finfo(dtype).eps) / 2


def _size(value: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(value.detach().double())


def _products(module: nn.Module) -> nn.Parameter | None:
    """Return the weight of a module that multiplies its input by a matrix."""
    weight = getattr(module, "weight", None)
    is_matrix = isinstance(weight, nn.Parameter) and weight.dim() == 2
    return weight if is_matrix and not isinstance(module, nn.Embedding) else None


def regions(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that are proven: those without children, those of such alone, and the whole model."""
    for name, module in model.named_modules():
        children = list(module.children())
        if not name or all(not list(child.children()) for child in children):
            yield name, module


class Prover(Observer):
    """Observer that proves some steps of an engine, and leaves their bits as they are."""

    def __init__(
        self, engine: Engine, steps: Collection[int], proofs: list[dict[str, Any]] | None = None, *, draws: bool = False
    ) -> None:
        """`proofs`: those of an interrupted run, to which further ones are added; `draws`: whether dropout is native."""
        self._engine, self._steps, self._reads_draws = engine, set(steps), draws
        self.proofs: list[dict[str, Any]] = [] if proofs is None else proofs
        self._step: int | None = None
        self._quiet = True
        self._found: list[_Found] = []
        self._handles: list[Any] = []
        self._between: tuple[torch.Tensor, torch.Tensor] | None = None
        self._names = {value: name for name, value in engine.bare.named_parameters()}

    def add(self, step: int) -> None:
        """Prove one more step."""
        self._steps.add(step)

    def train(self, step: int, batch: Batch) -> StepOutcome:
        """Train on a global batch, and prove the step if it is one of those."""
        if self._between is not None:
            self._compare_state(step)
        if step not in self._steps:
            return self._engine.step(step, batch)
        observer = self._engine.observer
        self._engine.observer = Observers(self, observer)
        try:
            return self._engine.step(step, batch)
        finally:
            self._engine.observer = observer
            self._close()

    def _compare_state(self, step: int) -> None:
        """Add what changed between a proven step and the next one to the former's proof."""
        before, self._between = self._between, None
        for name, kept, now in zip(("weights", "moments"), before or (), self._state(), strict=True):
            if not torch.equal(kept, now):
                changed = ProofError(stage="state", name=name, kind="", dtype="", error=None)
                self.proofs[-1]["errors"].append(changed.to_json())

    # The step, as the engine tells it.

    def starts(self, step: int) -> None:
        """Hook the model, if the step is to be proven."""
        self._step, self._found, self._draws = step, [], NativeDraws()
        self._skipped, self._weight = False, 1.0
        self._expected: dict[tuple[str, int], torch.Tensor] = {}
        self._terms: dict[int, torch.Tensor] = {}
        self._rows: dict[int, int] = {}
        self._kinds: dict[tuple[str, int], tuple[str, torch.dtype]] = {}
        self._uses: dict[tuple[str, int], int] = {}
        self._scale = self._engine.scaler.get_scale() if self._engine.scaler else 1.0
        if not self._is_whole:
            for name, module in regions(self._engine.bare):
                self._handles.append(module.register_forward_pre_hook(partial(self._enters, name), with_kwargs=True))
                self._handles.append(module.register_forward_hook(partial(self._leaves, name), with_kwargs=True))
        self._update = UpdateCheck(self._engine)

    @property
    def _is_whole(self) -> bool:
        """Return whether no module can be watched: kernels of a compiled model are no modules', shards no weights."""
        return bool(self._engine.is_compiled or self._engine.is_sharded)

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        """Watch the forward pass of a micro-batch."""
        if self._step is None:
            return
        self._labels = local["labels"]
        if self._is_whole:
            return
        self._open: list[tuple[str, int]] = []
        self._quiet = False
        if self._reads_draws:
            self._draws.__enter__()

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Compare the loss, and in the backward pass the gradient that it gives the logits, with their definition."""
        if self._step is None:
            return
        if not self._quiet:
            if self._reads_draws:
                self._draws.__exit__(None, None, None)
            self._quiet = True
        labels = self._labels
        task, logits = self._engine.task, outputs.logits
        if labels is None or not task.num_terms(labels):
            return
        exact = logits.detach().double().requires_grad_()
        with aside(), torch.enable_grad():
            mean = task.loss(self._engine.unpacked(exact), labels)
            (slope,) = torch.autograd.grad(mean, exact)
        # The probabilities' sums are as large as the largest logit; CUDA's autocast rounds them to the logits' format.
        size = torch.maximum(mean.detach().abs(), exact.detach().abs().max()).clamp_min(1e-300)
        dtype = logits.dtype if logits.is_cuda else loss.dtype
        error = (loss.detach().double() - mean.detach()).abs() / size / unit_of(dtype)
        self._add("loss", "loss", type(self._engine.bare).__name__, dtype, logits.shape[-1], error)
        weight: list[torch.Tensor] = []
        loss.register_hook(lambda gradient: weight.append(gradient.detach().double()))
        logits.register_hook(partial(self._of_logits, slope, weight, type(self._engine.bare).__name__))

    def _of_logits(self, slope: torch.Tensor, weight: list[torch.Tensor], kind: str, passed: torch.Tensor) -> None:
        expected = slope * weight[0]
        error = (_distance(passed, expected) / _size(expected).clamp_min(1e-300)) / unit_of(passed.dtype)
        self._add("gradient", "logits", kind, passed.dtype, slope.shape[-1], error)

    def backward_done(self) -> None:
        """Compare the complete gradients with those of each module."""
        if self._step is None:
            return
        self._close()
        self._before = {value: _size(value.grad) for value in self._names if value.grad is not None}
        self._skipped = not bool(torch.isfinite(torch.stack([*self._before.values(), torch.zeros(())
                                 .to(self._engine.ranks.device).double()])).all())
        if self._skipped and self._engine.scaler:
            self._found = [found for found in self._found if found.stage != "gradient"]
            return
        for value, name in self._names.items():
            self._gradient(id(value), name, value.grad)

    def _gradient(self, key: int, name: str, native: torch.Tensor | None) -> None:
        if ("leaf", key) not in self._expected or native is None:
            return
        world = self._engine.ranks.world
        for level in ("block", "leaf"):
            if self._uses.get((level, key)) != self._uses["leaf", key]:
                continue  # a weight that another module uses as well
            expected = self._shared(self._expected[level, key]) / (self._scale * world)
            scale = torch.maximum(_size(expected), self._shared(self._terms[key]).sqrt() / (self._scale * world))
            kind, dtype = self._kinds[level, key]
            # A half's smallest number is a part of the rounding where the loss is scaled.
            least = native.numel() ** 0.5 * 2.0**-25 / self._scale if dtype == torch.float16 else 0.0
            off = (_distance(native, expected) - least).clamp_min(0.0)
            error = off / (scale.clamp_min(1e-300) * unit_of(dtype))
            # Exactly zero on both sides, as of a table's rows that no batch reads.
            self._add("gradient", name, kind, dtype, self._rows[key], torch.where(off == 0, 0.0, error))

    def _shared(self, own: torch.Tensor) -> torch.Tensor:
        """Return the sum over all processes."""
        if self._engine.ranks.world > 1:
            own = own.clone()
            dist.all_reduce(own)
        return own

    def clipped(self) -> None:
        """Compare the clipped gradients with their definition, and keep the state before the update."""
        if self._step is None or self._skipped:
            return
        most = self._engine.spec.optimizer.max_grad_norm
        total = torch.linalg.vector_norm(torch.stack(list(self._before.values())))
        factor = (most / (total + 1e-6)).clamp_max(1.0)
        for value, size in self._before.items():
            if value.grad is not None:
                expected = size * factor
                error = (_size(value.grad) - expected).abs() / expected.clamp_min(1e-300) / unit_of(value.grad.dtype)
                error = torch.where(expected == 0, _size(value.grad), error)
                self._add("clipped", self._names[value], "", value.grad.dtype, len(self._before), error)
        self._update.before()

    def done(self, outcome: StepOutcome) -> None:
        """Compare the update with its definition, and read all errors."""
        if self._step is None:
            return
        if not self._skipped:
            for name, error in self._update.errors(outcome.learning_rates):
                self._add("optimizer", name, self._update.kind, torch.float32, 1, error)
        self._between = self._state()
        errors = read_losses([found.error for found in self._found])
        listed = [
            ProofError(
                stage=found.stage, name=found.name or "model", kind=found.kind, dtype=str(found.dtype).removeprefix("torch."),
                terms=found.terms, error=finite(error),
            )
            for found, error in zip(self._found, errors, strict=True)
        ]
        self.proofs.append(
            Proof(
                step=self._step, errors=_kept(listed), tensors=len(listed), draws=self._draws.summary(),
                skipped=self._skipped,
            ).to_json()
        )
        self._step, self._found = None, []
        del self._update, self._draws

    def _state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return checksums of weights and moments."""
        device = self._engine.ranks.device
        states = [
            entry for value in self._names for entry in self._engine.optimizer.state.get(value, {}).values()
            if isinstance(entry, torch.Tensor) and entry.dim()
        ]  # fmt: skip
        return checksum(self._names, device), checksum(states, device)

    def _close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # One module.

    def _enters(self, name: str, module: nn.Module, given: Any, named: Any) -> Any:
        """Watch the gradient that the backward pass gives each input of a matrix product."""
        if self._quiet:
            return None
        self._open.append((name, len(self._draws.found)))
        if _products(module) is None:
            return None
        self._aliases: list[torch.Tensor] = []
        return _mapped(given, self._alias), _mapped(named, self._alias)

    def _alias(self, value: torch.Tensor) -> torch.Tensor:
        if not (value.is_floating_point() and value.requires_grad and torch.is_grad_enabled()):
            return value
        alias = value.view_as(value)
        self._aliases.append(alias)
        return alias

    def _leaves(self, name: str, module: nn.Module, given: Any, named: Any, output: Any) -> None:
        """Compare a module's output with its definition, and wait for its gradient."""
        if self._quiet:
            return
        _, first = self._open.pop()
        native = first_tensor(output)
        if native is None:
            return
        call = _Call(name, module, (_mapped(given, torch.Tensor.detach), _mapped(named, torch.Tensor.detach)),
                     self._draws.found[first:])
        self._draws.name(first, name)
        repeated = _Exactly(self, call.draws)
        with repeated, torch.no_grad():
            exact = first_tensor(self._called(call))
        if repeated.draws.is_short:
            return  # it draws what nobody expects, so that nothing is known of its output
        weight = _products(module)
        dtype = self._format(module, native.dtype)
        if exact is None or dtype == torch.float64:
            return
        terms = native.shape[-1] if weight is None else weight.numel() // native.shape[-1]
        size = _size(exact).clamp_min(1e-300)
        self._add("forward", name, type(module).__name__, dtype, terms, _distance(native, exact) / size / unit_of(dtype))
        if name and native.requires_grad:
            aliases = self._aliases if weight is not None else []
            native.register_hook(partial(self._passed, call))
            for place, alias in enumerate(aliases):
                alias.register_hook(partial(self._reached, call, place))
            self._aliases = []

    def _format(self, module: nn.Module, dtype: torch.dtype) -> torch.dtype:
        """Return the shortest format within a module: under autocast, products inside are in half precision."""
        return _SHORT.get(self._engine.precision, dtype) if any(True for _ in module.children()) else dtype

    def _called(self, call: _Call, parameters: dict[str, torch.Tensor] | None = None, inputs: Any = None) -> Any:
        given, named = inputs or (_mapped(call.inputs[0], _in_double), _mapped(call.inputs[1], _in_double))
        tensors = {name: _in_double(value) for name, value in call.module.named_buffers()}
        tensors |= parameters or {name: _in_double(value) for name, value in call.module.named_parameters()}
        return functional_call(call.module, tensors, given, named)

    def _passed(self, call: _Call, gradient: torch.Tensor) -> None:
        """Add the gradients that a module's definition gives its parameters and inputs."""
        level = "block" if any(True for _ in call.module.children()) else "leaf"
        wanted: list[torch.Tensor] = []

        def leaf(value: torch.Tensor) -> torch.Tensor:
            exact = _in_double(value)
            if not value.is_floating_point():
                return exact
            wanted.append(exact.requires_grad_())
            return exact

        originals = {name: value for name, value in call.module.named_parameters() if value.requires_grad}
        parameters = {name: _in_double(value).requires_grad_(value.requires_grad)
                      for name, value in call.module.named_parameters()}
        passed = gradient.detach().double()
        with _Exactly(self, call.draws), torch.enable_grad():
            has_inputs = _products(call.module) is not None
            inputs = (_mapped(call.inputs[0], leaf), _mapped(call.inputs[1], leaf)) if has_inputs else None
            exact = first_tensor(self._called(call, parameters, inputs))
            if exact is None or not exact.requires_grad:
                return
            sources = [parameters[name] for name in originals] + wanted
            found = torch.autograd.grad(exact, sources, passed, allow_unused=True)
        call.passed = {place: each for place, each in enumerate(found[len(originals):]) if each is not None}
        if level == "leaf":
            self._note_terms(call, passed, exact, originals, wanted)
        for (name, value), each in zip(originals.items(), found, strict=False):
            if each is None:
                continue
            key = (level, id(value))
            self._expected[key] = self._expected[key] + each if key in self._expected else each.clone()
            self._uses[key] = self._uses.get(key, 0) + 1
            form, used = self._format(call.module, gradient.dtype), self._kinds.get(key)
            # A tied weight sums the gradients of both its modules.
            self._kinds[key] = (type(call.module).__name__, used[1] if used and unit_of(used[1]) > unit_of(form) else form)

    def _note_terms(self, call: _Call, passed: torch.Tensor, exact: torch.Tensor, originals: Any, wanted: Any) -> None:
        """Add the squares of the terms whose sum is a gradient: how far they cancel is no error."""
        weight = _products(call.module)
        flat = passed.reshape(-1, passed.shape[-1])
        squares = flat.square()
        for name, value in originals.items():
            if value is weight and wanted:
                given = wanted[0].detach().reshape(-1, wanted[0].shape[-1])
                size = (squares.sum(1) * given.square().sum(1)).sum() if len(given) == len(flat) else squares.sum()
            elif name == "weight" and value.dim() == 1 and value.shape[0] == flat.shape[1]:
                bias = getattr(call.module, "bias", None)
                offset = 0.0 if bias is None else bias.detach().double()
                own = value.detach().double()
                whole = (exact.detach() - offset).reshape(flat.shape) / torch.where(own == 0, 1.0, own)
                size = (flat * whole).square().sum()
            else:
                size = squares.sum()
            key = id(value)
            self._terms[key] = self._terms[key] + size if key in self._terms else size
            self._rows[key] = self._rows.get(key, 0) + len(flat)
        if weight is not None:
            columns = weight.detach().double().square()
            along = 1 if columns.shape[0] == flat.shape[1] else 0
            call.terms = (squares @ columns.sum(along)).sum().sqrt()

    def _reached(self, call: _Call, place: int, gradient: torch.Tensor) -> None:
        """Compare the gradient that a module gave an input with its definition."""
        expected = call.passed.pop(place, None)
        if expected is None or call.terms is None:
            return
        dtype = _SHORT.get(self._engine.precision, gradient.dtype)
        size = torch.maximum(_size(expected), call.terms).clamp_min(1e-300)
        least = gradient.numel() ** 0.5 * 2.0**-25 if dtype == torch.float16 else 0.0
        error = (_distance(gradient, expected) - least).clamp_min(0.0) / size / unit_of(dtype)
        error = torch.where(_size(expected) == 0, _size(gradient), error)
        weight = _products(call.module)
        terms = 1 if weight is None else weight.numel() // gradient.shape[-1]
        self._add("gradient", f"{call.name} input", type(call.module).__name__, dtype, terms, error)

    def _add(self, stage: ProofStage, name: str, kind: str, dtype: torch.dtype, terms: int, error: torch.Tensor) -> None:  # noqa: PLR0917
        self._found.append(_Found(stage, name, kind, dtype, terms, error.detach()))


def _distance(native: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(native.detach().double() - exact.detach().double())


class _Exactly:
    """Context of a module's definition: fp64, its own masks, no hooks, and no further draws."""

    def __init__(self, prover: Prover, draws: list[Draw]) -> None:
        self._prover, self.draws = prover, RepeatedDraws(draws)

    def __enter__(self) -> None:
        self._was, self._prover._quiet = self._prover._quiet, True
        device = self._prover._engine.ranks.device.type
        self._contexts: list[Any] = [
            aside(), self._prover._draws.paused(), torch.autocast(device, enabled=False), self.draws,
        ]
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *error: Any) -> None:
        for context in reversed(self._contexts):
            context.__exit__(*error)
        self._prover._quiet = self._was


def _kept(errors: list[ProofError]) -> tuple[ProofError, ...]:
    """Return the largest error of each stage and kind, and those beyond their limits, in the order of computation."""
    largest: dict[tuple[str, str, str], ProofError] = {}
    for each in errors:
        key = (each.stage, each.kind, each.dtype)
        if key not in largest or _ratio(each) > _ratio(largest[key]):
            largest[key] = each
    chosen = set(map(id, largest.values()))
    over = {id(each) for each in [each for each in errors if _ratio(each) > 1][:_MOST]}
    kept = [each for each in errors if id(each) in chosen | over]
    return tuple(sorted(kept, key=lambda each: ORDER.index(each.stage)))


def _ratio(each: ProofError) -> float:
    return float("inf") if each.error is None else each.error / proof_limit(each)
