"""Check of modules: compare outputs and gradients with fp64 on equal inputs.

An output is compared when its module has computed it. A gradient is repeated when the backward pass reaches the module,
from what it passes to the output. Only references to the native inputs are kept, most of which autograd keeps as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import sum_limit
from plumbline.train.proof.distance import NO_FORM, Found, Lost, distance, error_of, size_of, unit_of
from plumbline.train.proof.draws import Draw, NativeDraws, drops
from plumbline.train.proof.isolation import (
    CallState,
    NoCollectives,
    OutsideUses,
    by_owner,
    generators_of,
    mapped,
    several,
    undisturbed,
)
from plumbline.train.proof.repeated import MOST_TRIALS, Repeated, in_double
from plumbline.train.ranks import Ranks
from plumbline.train.watch.calls import first_tensor, hookable
from plumbline.train.watch.summaries import is_summarizing

SHORT = {"bf16": torch.bfloat16, "fp16": torch.float16}
KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh)
"""Next to their kinks, rounding passes all of a gradient, or none."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNELS = (
    *CONVOLUTIONS, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d,
    nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip
"""Modules whose parameters belong to channels, the second dimension."""
_Change = Callable[[torch.Tensor], torch.Tensor]
Level = Literal["leaf", "block"]
"""Whether a module is one without children, or holds such."""


def _when_changed(output: torch.Tensor, see: Callable[[torch.Tensor], None]) -> None:
    """Call `see` with an output's gradient as the hooks on this tensor leave it, which a foreign loop adds later."""
    node, place = output.grad_fn, output.output_nr
    if node is None:
        output.register_hook(see)
    else:
        node.register_prehook(lambda found: None if found[place] is None else see(found[place]))


def regions(model: nn.Module, *, is_foreign: bool = False) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules to check: leaves, their blocks, and the whole model if it is known, or one of these itself."""
    for name, module in hookable(model):
        if (not name and not is_foreign) or not any(list(child.children()) for child in module.children()):
            yield name, module


def _matrix(module: nn.Module) -> nn.Parameter | None:
    """Return the weight matrix of a linear-like module, else `None`."""
    weight = getattr(module, "weight", None)
    is_matrix = isinstance(weight, nn.Parameter) and weight.dim() == 2
    return weight if is_matrix and not isinstance(module, nn.Embedding) else None


def _num_terms(module: nn.Module, gradient: torch.Tensor) -> int:
    """Return the number of terms that a parameter's gradient sums, from the gradient of its module's output.

    Over the places of channels, a CPU adds `n` of them one after another. Equal ones lose up to `n / 2` roundings, as
    many as a balanced sum of `(n / 8) ** 2` may.
    """
    if not isinstance(module, _CHANNELS) or gradient.dim() < 3:
        return max(gradient.numel() // max(gradient.shape[-1:], default=1), 1)
    terms = gradient.numel() // max(gradient.shape[1], 1)
    return max(terms, (terms // 8) ** 2, 1)


@dataclass(eq=False, slots=True)
class _Call:
    """One module call, with its native inputs and dropout masks."""

    name: str
    module: nn.Module
    inputs: tuple[Any, dict[str, Any]]
    buffers: dict[str, torch.Tensor]
    """Those of the call's start."""
    draws: list[Draw]
    gradient: torch.Tensor | None = None
    """What the backward pass gave the output."""
    passed: dict[int, torch.Tensor] = field(default_factory=dict)
    """Expected gradients of the inputs of a matrix product, by place."""
    moved: dict[int, dict[torch.Tensor | int, torch.Tensor]] = field(default_factory=dict)
    """By trial, square of the distance by which roundings move each gradient, in roundings, once it is measured."""

    @property
    def level(self) -> Level:
        return "block" if any(True for _ in self.module.children()) else "leaf"

    @property
    def kind(self) -> str:
        return type(self.module).__name__

    def inputs_by(self, change: _Change) -> tuple[Any, dict[str, Any]]:
        """Return the inputs, with `change` applied to each tensor."""
        given, named = mapped(list(self.inputs), change)
        return given, named

    def parameters_by(self, change: _Change) -> dict[str, torch.Tensor]:
        """Return the parameters by name, with `change` applied to each."""
        return by_owner(self.module, "named_parameters", lambda _, value: change(value))

    def output(self, parameters: dict[str, torch.Tensor], inputs: tuple[Any, dict[str, Any]]) -> torch.Tensor | None:
        """Return the module's output by its definition in fp64."""
        # Copies: a module may change its own buffers, such as BatchNorm's statistics and its number of batches.
        tensors = {name: in_double(value).clone() for name, value in self.buffers.items()} | parameters
        # torch restores the weights of a module that stands at two places wrongly, if it ties them itself.
        return first_tensor(functional_call(self.module, tensors, *inputs, tie_weights=False))


@dataclass(slots=True)
class _Entered:
    """Module whose call has begun."""

    module: nn.Module
    num_draws: int
    """Draws before the call."""
    state: CallState | None = None
    aliases: list[torch.Tensor] = field(default_factory=list)
    """Inputs of a matrix product, as views whose gradients are this call's alone."""


@dataclass(slots=True)
class _Gradient:
    """Expected gradient of a parameter, summed over modules of one level."""

    kind: str
    dtype: torch.dtype
    value: torch.Tensor
    rows: int
    calls: list[_Call]
    arrived: tuple[torch.Tensor, int, int] | None = None
    """Value, rows and number of calls of the backward passes that have ended."""


class ModuleProofs:
    """Hooks on a model for one step, collecting comparisons in `found`."""

    def __init__(
        self, model: nn.Module, ranks: Ranks, precision: Precision, found: list[Found], *, is_foreign: bool = False
    ) -> None:
        """Hook the modules. In a foreign model functions may use weights of modules that they do not call."""
        self._model, self._ranks, self.precision, self._found = model, ranks, precision, found
        self.draws, self._generators = NativeDraws(), generators_of(model, ranks.device)
        self._is_forward, self._unproven = False, ""
        self._open: list[_Entered] = []
        self._expected: dict[tuple[Level, torch.Tensor], _Gradient] = {}
        self.lost = Lost()
        self._uses = OutsideUses(self._is_inside) if is_foreign else None
        self._hooks, self._pass = ExitStack(), ExitStack()
        for name, module in regions(model, is_foreign=is_foreign):
            enter = self._hooks.enter_context
            # Before the module's own hooks, which may change its buffers, as those of a spectral norm.
            enter(module.register_forward_pre_hook(self._enters, with_kwargs=True, prepend=is_foreign))
            enter(module.register_forward_hook(partial(self._leaves, name), with_kwargs=True))
        self._reads = ranks.device.type == "cpu"
        self._unknown = torch.full((), math.nan, dtype=torch.float64, device=ranks.device)

    def feeds(self) -> None:
        """Reset the hooks for the next forward pass."""
        self._is_forward, self._open = True, []
        if self._uses is not None:
            self._pass.enter_context(self._uses)
        if drops(self._model):
            self._pass.enter_context(self.draws)

    def _is_inside(self, parameter: nn.Parameter) -> bool:
        """Return whether the module that owns the parameter is being called, and not one around it alone."""
        return any(parameter is own for each in self._open for own in each.module.parameters(recurse=False))

    def forward_done(self) -> None:
        """Stop hooking after the forward pass, so recomputation is ignored."""
        self._is_forward = False
        self._pass.close()

    def close(self) -> None:
        """Remove the hooks."""
        self._pass.close()
        self._hooks.close()
        self._open.clear()  # which holds the graph, whose hooks hold this object
        self._expected.clear()

    def _exactly(self, call: _Call, repeated: Repeated) -> ExitStack:
        """Return a context for fp64 recomputation with known masks, which no hook takes for the training's."""
        stack = ExitStack()
        stack.enter_context(self.lost.guarded(call.name or "model"))
        if self.precision in SHORT:
            stack.enter_context(torch.autocast(self._ranks.device.type, enabled=False))
        if self._uses is not None and dist.is_initialized():
            stack.enter_context(NoCollectives())
        stack.enter_context(repeated)
        stack.enter_context(undisturbed(self._generators, repeated.drew))
        return stack

    def _format(self, call: _Call, dtype: torch.dtype) -> torch.dtype:
        """Return the lowest-precision dtype used within a module."""
        return SHORT.get(self.precision, dtype) if call.level == "block" else dtype

    def _enters(self, module: nn.Module, given: Any, named: Any) -> Any:
        """Hook the input gradients of a matrix product."""
        if not self._is_forward or is_summarizing():
            return None
        entered = _Entered(module, len(self.draws.found))
        self._open.append(entered)

        def alias(value: torch.Tensor) -> torch.Tensor:
            if not (value.is_floating_point() and value.requires_grad and value.layout == torch.strided):
                return value
            entered.aliases.append(value.view_as(value))
            return entered.aliases[-1]

        with self.lost.guarded(type(module).__name__):
            entered.state = CallState(module, given, named)
            if _matrix(module) is not None:
                return mapped(given, alias), mapped(named, alias)
        return None

    def _leaves(self, name: str, module: nn.Module, given: Any, named: Any, output: Any) -> None:
        """Compare a module's output with its definition; register for its gradient."""
        while self._is_forward and self._open and not is_summarizing():
            entered = self._open.pop()
            if entered.module is module:  # else its call ended by an error
                with self.lost.guarded(name or type(module).__name__):
                    self._check(name, entered, (given, named), output)
                return

    def _check(self, name: str, entered: _Entered, inputs: tuple[Any, Any], output: Any) -> None:
        module, first, state, native = entered.module, entered.num_draws, entered.state, first_tensor(output)
        self.draws.name(first, name)
        if isinstance(module, nn.Dropout) and not module.inplace and inputs[0] and native is not None:
            self.draws.dropped(first, inputs[0][0], native)
        if native is None or state is None or native.layout != torch.strided:
            return
        if why := state.why_not(module, output):
            self.lost.setdefault(name or "model", why)
            return
        given, named = mapped(state.inputs or inputs, torch.Tensor.detach)
        call = _Call(name, module, (given, named), state.buffers, self.draws.found[first:])
        dtype, weight = self._format(call, native.dtype), _matrix(module)
        exact = self._output(call)
        if exact is None or exact.shape != native.shape:
            return
        width = native.shape[-1] if native.dim() else 1
        terms = width if weight is None else weight.numel() // width
        found = Found("forward", name or "model", call.kind, dtype, terms, exact)
        self._compare(found, native, partial(self._moved_output, call, exact, dtype))
        if self._reads and float(self._found[-1].error) == NO_FORM:
            return
        # The outputs of known modules other than the first are read by nobody, such as BERT's attention weights.
        if native.requires_grad and self._uses is not None and several(output):
            self.lost.setdefault(name or "model", "several outputs have gradients")
        elif native.requires_grad and (name or self._uses is not None):
            watch = native.register_hook if self._uses is None else partial(_when_changed, native)
            watch(partial(self._passed, call))
            for place, alias in enumerate(entered.aliases):
                alias.register_hook(partial(self._reached, call, place))

    def _output(self, call: _Call, rounded: torch.dtype | None = None, trial: int = 0) -> torch.Tensor | None:
        """Return a module's output by definition, if dropout masks are known."""
        repeated = Repeated(call.draws, rounded, trial)
        parameters, inputs = call.parameters_by(repeated.entered), call.inputs_by(repeated.entered)
        found = None
        with self._exactly(call, repeated), torch.no_grad():
            found = call.output(parameters, inputs)
        if repeated.is_short:
            self.lost.setdefault(call.name or "model", "draws numbers of its own")
        return None if repeated.is_short else found

    def _passed(self, call: _Call, gradient: torch.Tensor) -> None:
        """Add a module's expected parameter gradients, and store its input gradients.

        Those of a block with a kink are left to its leaves: next to it, rounding passes all of a gradient, or none.
        So are those of one with channels, whose sums are as long as the leaves' outputs, which it does not show.
        """
        if gradient.requires_grad:
            self._unproven = "are of second order"  # the gradients of these gradients add to the weights' own
        elif torch.is_autocast_enabled(self._ranks.device.type):
            self._unproven = "are computed under autocast, which leaves their formats to it"
        if call.level != "leaf" and any(isinstance(each, (*KINKED, *_CHANNELS)) for each in call.module.modules()):
            return
        with self.lost.guarded(call.name or call.kind):
            self._expect(call, gradient)

    def _expect(self, call: _Call, gradient: torch.Tensor) -> None:
        exact = self._gradients(call, gradient)
        call.gradient = gradient
        if not self._reads:
            self._moved(call, 0, exact)
            call.inputs, call.gradient = ((), {}), None
        dtype, rows = self._format(call, gradient.dtype), _num_terms(call.module, gradient)
        for key, expected in exact.items():
            if isinstance(key, int):
                call.passed[key] = expected
            else:
                self._add(key, _Gradient(call.kind, dtype, expected, rows, [call]), call.level)

    def _moved_output(self, call: _Call, exact: torch.Tensor, dtype: torch.dtype, trial: int) -> torch.Tensor:
        """Return how far random rounding moves an output, in roundings."""
        moved, again = self._output(call, dtype, trial), self._output(call) if self._reads and not trial else exact
        if moved is None or again is None or (self._reads and not torch.equal(again, exact)):
            return self._unknown  # such as draws of a generator that nothing here sees
        return distance(moved, exact) / unit_of(dtype)

    def _moved(
        self, call: _Call, trial: int, exact: dict[torch.Tensor | int, torch.Tensor] | None = None
    ) -> dict[torch.Tensor | int, torch.Tensor]:
        """Return how far random rounding moves each gradient of a call, squared."""
        if trial not in call.moved and call.gradient is not None:
            exact = self._gradients(call, call.gradient) if exact is None else exact
            dtype = self._format(call, call.gradient.dtype)
            moved = self._gradients(call, call.gradient, dtype, trial)
            call.moved[trial] = {
                key: (distance(moved[key], value) / unit_of(dtype)).square()
                for key, value in exact.items() if key in moved
            }  # fmt: skip
        return call.moved.get(trial, {})

    def _gradients(
        self, call: _Call, gradient: torch.Tensor, rounded: torch.dtype | None = None, trial: int = 0
    ) -> dict[torch.Tensor | int, torch.Tensor]:
        """Return the expected gradients of parameters and matrix product inputs."""
        repeated, wanted = Repeated(call.draws, rounded, trial), dict[torch.Tensor | int, torch.Tensor]()
        own = {name: value for name, value in call.module.named_parameters() if value.requires_grad}

        def leaf(value: torch.Tensor) -> torch.Tensor:
            exact = repeated.entered(value)
            if exact.is_floating_point():
                wanted[len(wanted)] = exact.requires_grad_()
            return exact

        inputs = call.inputs_by(leaf if _matrix(call.module) is not None else repeated.entered)
        parameters, passed = call.parameters_by(repeated.entered), repeated.entered(gradient)
        wanted |= {value: parameters[name].requires_grad_() for name, value in own.items()}
        found: tuple[torch.Tensor | None, ...] = ()
        with self._exactly(call, repeated), torch.enable_grad():
            output = call.output(parameters, inputs)
            if output is None or not output.requires_grad or output.shape != gradient.shape:
                return {}
            # A module may compute its own forward pass again in the backward pass.
            found = torch.autograd.grad(output, list(wanted.values()), passed, allow_unused=True)
        known = () if repeated.is_short else found
        return {key: each for key, each in zip(wanted, known, strict=False) if each is not None}

    def _add(self, parameter: torch.Tensor, more: _Gradient, level: Level) -> None:
        known = self._expected.setdefault((level, parameter), more)
        if known is not more:  # of another micro-batch, or of a module with the same weight
            known.value += more.value
            known.rows += more.rows
            known.calls += more.calls
            known.dtype = max(known.dtype, more.dtype, key=unit_of)

    def arrives(self, parameter: torch.Tensor, *, is_clear: bool) -> None:
        """End a backward pass for a parameter; what its earlier ones gave is left out if it was cleared since."""
        for level in ("leaf", "block"):
            found = self._expected.get((level, parameter))
            if found is None:
                continue
            if is_clear and found.arrived is not None:
                value, rows, num_calls = found.arrived
                found.value, found.rows = found.value - value, found.rows - rows
                found.calls = found.calls[num_calls:]
            found.arrived = found.value.clone(), found.rows, len(found.calls)

    def _reached(self, call: _Call, place: int, native: torch.Tensor) -> None:
        """Compare an input's gradient from a matrix product with its definition."""
        weight = _matrix(call.module)
        if place not in call.passed or weight is None:
            return
        with self.lost.guarded(call.name or call.kind):
            dtype = SHORT.get(self.precision, native.dtype)
            terms = weight.numel() // native.shape[-1]
            found = Found("gradient", f"{call.name} input", call.kind, dtype, terms, call.passed.pop(place))
            self._compare(found, native, lambda trial: self._moved(call, trial).get(place, self._unknown).sqrt())

    def gradients(
        self, names: Mapping[torch.Tensor, str], given: Mapping[torch.Tensor, torch.Tensor], scale: float
    ) -> None:
        """Compare gradients with their definitions; `scale` is the loss scale."""
        if self._unproven:
            self.lost["gradients"] = self._unproven
            return
        factor, outside = scale * self._ranks.world, self._uses.found if self._uses is not None else set()
        self.lost |= {names[each]: "is used by a function" for each in outside if each in names}
        comparable = {
            (level, names[parameter]): (parameter, expected)
            for (level, parameter), expected in self._expected.items()
            if parameter in given and parameter not in outside and self._is_whole(parameter, expected)
        }
        if self._uses is not None:
            shown = {name for _, name in comparable} | self.lost.keys()
            hidden = [name for parameter, name in names.items() if parameter in given and name not in shown]
            if hidden:
                more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
                self.lost["gradients"] = f"no repeated module shows all uses of {hidden[0]}{more}"
        # A process may have lost a module whose code did not compute in fp64 on its own rows.
        everyone = self._ranks.gather(list(comparable))
        for level, name in everyone[0]:
            if not all((level, name) in known for known in everyone):
                continue
            parameter, expected = comparable[level, name]
            exact = self._ranks.summed(expected.value) / factor
            moved = partial(self._moved_sum, parameter, expected.calls, factor)
            found = Found("gradient", name, expected.kind, expected.dtype, expected.rows, exact)
            self._compare(found, given[parameter], moved)

    def _is_whole(self, parameter: torch.Tensor, expected: _Gradient) -> bool:
        """Return whether an expected gradient includes all uses of its weight.

        A block that has a parameter itself, beside its children, is the only one that shows it.
        """
        leaf = self._expected.get(("leaf", parameter))
        if leaf is None:
            return all(
                any(parameter is own for own in call.module.parameters(recurse=False)) for call in expected.calls
            )
        return len(leaf.calls) == len(expected.calls)

    def _moved_sum(self, parameter: torch.Tensor, calls: list[_Call], factor: float, trial: int) -> torch.Tensor:
        """Return how far rounding moves a parameter's summed gradient, in roundings."""
        moved = torch.stack([self._moved(call, trial).get(parameter, self._unknown) for call in calls]).sum()
        return self._ranks.summed(moved).sqrt() / factor

    def _compare(self, found: Found, native: torch.Tensor, moved: Callable[[int], torch.Tensor]) -> None:
        """Record a tensor's distance from its definition, and rounding's largest effect in some trials.

        `found.error` is the definition. Where an error can be read without a wait, roundings are
        repeated only for a tensor that is not well within its limit, and again while it is beyond.
        """
        size = size_of(found.error)
        error = error_of(native, found.error, size, found.dtype)
        limit = sum_limit(found.stage, str(found.dtype).removeprefix("torch."), found.terms)
        is_read = self._reads and float(error) <= limit / 2
        for trial in range(0 if is_read else MOST_TRIALS if self._reads else 1):
            size = torch.maximum(size, moved(trial))  # NaN if unknown
            error = error_of(native, found.error, size, found.dtype)
            if self._reads and not float(error) > limit:
                break
        self._found.append(replace(found, error=torch.where(torch.isfinite(size), error, NO_FORM)))
