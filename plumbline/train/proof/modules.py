"""Hooks that compare module calls and gradients with fp64.

An output is compared when its module has computed it. A gradient is repeated when the backward pass reaches the module,
from what it passes to the output. Only references to the native inputs are kept, most of which autograd keeps as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from plumbline.schema.spec import Precision
from plumbline.schema.tolerance import sum_limit
from plumbline.train.proof.calls import SHORT, Call, Level, Repetitions, matrix_of
from plumbline.train.proof.distance import NO_FORM, Found, error_of, size_of, unit_of
from plumbline.train.proof.draws import drops
from plumbline.train.proof.isolation import CallState, OutsideUses, mapped, several
from plumbline.train.proof.repeated import MOST_TRIALS, NUMBER_TRIALS
from plumbline.train.ranks import Ranks
from plumbline.train.watch.calls import first_tensor, hookable
from plumbline.train.watch.summaries import is_summarizing

KINKED = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.Hardtanh)
"""Next to their kinks, rounding passes all of a gradient, or none."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_CHANNELS = (
    *CONVOLUTIONS, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d,
    nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip
"""Modules whose parameters belong to channels, the second dimension."""


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


def _num_terms(module: nn.Module, gradient: torch.Tensor) -> int:
    """Return the number of terms that a parameter's gradient sums, from the gradient of its module's output.

    Over the places of channels, a CPU adds `n` of them one after another. Equal ones lose up to `n / 2` roundings, as
    many as a balanced sum of `(n / 8) ** 2` may.
    """
    if not isinstance(module, _CHANNELS) or gradient.dim() < 3:
        return max(gradient.numel() // max(gradient.shape[-1:], default=1), 1)
    terms = gradient.numel() // max(gradient.shape[1], 1)
    return max(terms, (terms // 8) ** 2, 1)


@dataclass(slots=True)
class _Entered:
    """Module whose call has begun."""

    module: nn.Module
    num_draws: int
    """Draws before the call."""
    state: CallState | None = None
    formats: set[torch.dtype] = field(default_factory=set)
    """Formats of what the module and those inside returned."""
    aliases: list[torch.Tensor] = field(default_factory=list)
    """Inputs of a matrix product, as views whose gradients are this call's alone."""


@dataclass(slots=True)
class _Gradient:
    """Expected gradient of a parameter, summed over modules of one level."""

    kind: str
    dtype: torch.dtype
    value: torch.Tensor
    rows: int
    calls: list[Call]
    arrived: tuple[torch.Tensor, int, int] | None = None
    """Value, rows and number of calls of the backward passes that have ended."""


class ModuleProofs:
    """Hooks on a model for one step, collecting comparisons in `found`."""

    def __init__(self, model: nn.Module, ranks: Ranks, found: list[Found], *, is_foreign: bool = False) -> None:
        """Hook the modules. In a foreign model functions may use weights of modules that they do not call."""
        self._model, self._ranks, self._found = model, ranks, found
        self._calls = Repetitions(model, ranks.device, is_foreign=is_foreign)
        self.draws, self.lost = self._calls.draws, self._calls.lost
        self._is_forward, self._unproven = False, ""
        self._open: list[_Entered] = []
        self._expected: dict[tuple[Level, torch.Tensor], _Gradient] = {}
        self._uses = OutsideUses(self._is_inside) if is_foreign else None
        self._hooks, self._pass = ExitStack(), ExitStack()
        for name, module in regions(model, is_foreign=is_foreign):
            enter = self._hooks.enter_context
            # Before the module's own hooks, which may change its buffers, as those of a spectral norm.
            enter(module.register_forward_pre_hook(self._enters, with_kwargs=True, prepend=is_foreign))
            enter(module.register_forward_hook(partial(self._leaves, name), with_kwargs=True))

    def feeds(self, precision: Precision) -> None:
        """Reset the hooks for the next forward pass, in the format of autocast."""
        self._is_forward, self._open, self._calls.precision = True, [], precision
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
            if matrix_of(module) is not None:
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
        self._returned(entered, native)
        if isinstance(module, nn.Dropout) and not module.inplace and inputs[0] and native is not None:
            self.draws.dropped(first, inputs[0][0], native)
        if native is None or state is None or native.layout != torch.strided:
            return
        if why := state.why_not(module, output):
            self.lost.setdefault(name or "model", why)
            return
        given, named = mapped(state.inputs or inputs, torch.Tensor.detach)
        call = Call(name, module, (given, named), state.buffers, self.draws.found[first:], entered.formats)
        dtype, weight = self._calls.format_in(call, native.dtype), matrix_of(module)
        exact = self._calls.output(call)
        if exact is None or exact.shape != native.shape:
            return
        width = native.shape[-1] if native.dim() else 1
        terms = width if weight is None else weight.numel() // width
        found = Found("forward", name or "model", call.kind, dtype, terms, exact)
        self._compare(found, native, partial(self._calls.moved_output, call, exact, dtype))
        if self._calls.is_on_cpu and float(self._found[-1].error) == NO_FORM:
            return
        # The outputs of known modules other than the first are read by nobody, such as BERT's attention weights.
        if native.requires_grad and self._uses is not None and several(output):
            self.lost.setdefault(name or "model", "several outputs have gradients")
        elif native.requires_grad and (name or self._uses is not None):
            watch = native.register_hook if self._uses is None else partial(_when_changed, native)
            watch(partial(self._passed, call))
            for place, alias in enumerate(entered.aliases):
                alias.register_hook(partial(self._reached, call, place))

    def _returned(self, entered: _Entered, native: torch.Tensor | None) -> None:
        """Add an output's format to those of its module and of the modules around it."""
        if native is not None and native.is_floating_point():
            for each in (entered, *self._open):
                each.formats.add(native.dtype)

    def _passed(self, call: Call, gradient: torch.Tensor) -> None:
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

    def _expect(self, call: Call, gradient: torch.Tensor) -> None:
        exact = self._calls.gradients(call, gradient)
        call.gradient = gradient
        if not self._calls.is_on_cpu:
            self._calls.moved(call, 0, exact)
            call.inputs, call.gradient = ((), {}), None
        dtype, rows = self._calls.format_in(call, gradient.dtype), _num_terms(call.module, gradient)
        for key, expected in exact.items():
            if isinstance(key, int):
                call.passed[key] = expected
            else:
                self._add(key, _Gradient(call.kind, dtype, expected, rows, [call]), call.level)

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

    def _reached(self, call: Call, place: int, native: torch.Tensor) -> None:
        """Compare an input's gradient from a matrix product with its definition."""
        weight = matrix_of(call.module)
        if place not in call.passed or weight is None:
            return
        with self.lost.guarded(call.name or call.kind):
            dtype = self._calls.format_in(call, SHORT.get(self._calls.precision, native.dtype))
            terms = weight.numel() // native.shape[-1]
            found = Found("gradient", f"{call.name} input", call.kind, dtype, terms, call.passed.pop(place))

            def moved(trial: int) -> torch.Tensor:
                return self._calls.moved(call, trial).get(place, self._calls.unknown).sqrt()

            self._compare(found, native, moved)

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

    def _moved_sum(self, parameter: torch.Tensor, calls: list[Call], factor: float, trial: int) -> torch.Tensor:
        """Return how far rounding moves a parameter's summed gradient, in roundings."""
        moved = [self._calls.moved(call, trial).get(parameter, self._calls.unknown) for call in calls]
        return self._ranks.summed(torch.stack(moved).sum()).sqrt() / factor

    def _compare(self, found: Found, native: torch.Tensor, moved: Callable[[int], torch.Tensor]) -> None:
        """Record a tensor's distance from its definition, and rounding's largest effect in some trials.

        `found.error` is the definition. Where an error can be read without a wait, roundings are
        repeated only for a tensor that is not well within its limit, and again while it is beyond.
        """
        size = size_of(found.error)
        error = error_of(native, found.error, size, found.dtype)
        limit = sum_limit(found.stage, str(found.dtype).removeprefix("torch."), found.terms)
        is_read = self._calls.is_on_cpu and float(error) <= limit / 2
        trials = MOST_TRIALS if self._calls.is_on_cpu else NUMBER_TRIALS if native.numel() == 1 else 1
        for trial in range(0 if is_read else trials):
            size = torch.maximum(size, moved(trial))  # NaN if unknown
            error = error_of(native, found.error, size, found.dtype)
            if self._calls.is_on_cpu and not float(error) > limit:
                break
        self._found.append(replace(found, error=torch.where(torch.isfinite(size), error, NO_FORM)))
