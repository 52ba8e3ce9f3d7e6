"""Legs of the learning curve: single steps of the running training in portable arithmetic.

A leg starts from weights and optimizer moments that are equal on every machine, and executes the training's own
objects: model, masks, loss, clipping, optimizer, schedule and evaluation. Its bits do not depend on kernels or devices,
so equal legs prove equal formulas where the curves themselves separate by rounding. The training's state is restored
afterwards, and its bits are those of a training without legs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from plumbline.schema.digest import digest_json
from plumbline.schema.evidence import (
    BATCH_FIELDS,
    CurveLeg,
    CurveLegs,
    EvaluationEvidence,
    PortableStep,
    RankDifference,
)
from plumbline.schema.portable_parts import DROPOUT_INPUT, curve_leg_parts, other_formats
from plumbline.schema.sketch import small_sketch
from plumbline.train.batches import Batch
from plumbline.train.compat.torch import without_compiler
from plumbline.train.compat.transformers import attention_function
from plumbline.train.context import Context, auxiliary
from plumbline.train.digests import finite, host_array
from plumbline.train.engine import Engine, Observer, Observers
from plumbline.train.mantissa import measure_attention
from plumbline.train.model import named_once
from plumbline.train.numerics import pack_states, read_states, restore_states
from plumbline.train.portable.arithmetic import make_portable, portable_arithmetic
from plumbline.train.portable.leg import short_digest, unlike_most
from plumbline.train.portable.operations import UnportableOperationError
from plumbline.train.portable.products import check_products
from plumbline.train.ranks import Ranks
from plumbline.train.taps import first_tensor, named_gradients

_ROWS = 4
_SLICES = 1
_SAMPLED = 4096
_MOMENT = 2.0**-8
"""Factor of a weight in its moments: a power of two, so that the product is exact."""
_LOSS_SCALE = 1024.0
_THREADS = 8


def leg_rows(attention_mask: NDArray[Any], draw: Sequence[int], parts: int = 1) -> list[int]:
    """Return the places of a leg's rows, a few per micro-batch: the longest, the shortest, and others by `draw`.

    A formula may be wrong for rows beyond a length alone, and padding has to be among them.
    """
    num_rows = min(len(attention_mask), parts * max(1, _ROWS // parts))
    by_length = np.argsort(attention_mask.sum(axis=1), kind="stable").tolist()
    drawn = sorted(by_length, key=lambda row: digest_json([*draw, row]))
    return sorted([*dict.fromkeys((by_length[-1], by_length[0], *drawn))][:num_rows])


def _sampled(array: NDArray[Any]) -> tuple[float, ...]:
    """Return a small sketch of evenly spaced elements."""
    flat = array.reshape(-1)
    return tuple(map(float, small_sketch(flat[:: max(1, flat.size // _SAMPLED)])))


@dataclass
class _Outputs:
    """Hooks that digest each module's outputs, in the order of execution, over the micro-batches of one pass."""

    model: torch.nn.Module
    digests: dict[str, list[str | None]] = field(default_factory=dict)
    sketches: dict[str, tuple[float, ...]] = field(default_factory=dict)
    formats: dict[str, str] = field(default_factory=dict)
    """Number formats other than fp32."""
    _calls: dict[str, int] = field(default_factory=dict)

    def feeds(self) -> None:
        """Start a micro-batch."""
        self._calls.clear()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Hook all modules."""
        handles = [
            module.register_forward_hook(self._hook(name or "model")) for name, module in self.model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            value = first_tensor(output)
            if value is None:
                return
            calls = self._calls.get(name, 0)
            self._calls[name] = calls + 1
            key, array = (f"{name}#{calls}" if calls else name), host_array(value)
            if "dropout" in type(module).__name__.lower() and inputs:
                # What a module computes outside of its children shows in a dropout's input, and a mask in its output.
                given = short_digest(host_array(inputs[0]))
                self.digests.setdefault(f"{key}{DROPOUT_INPUT}", []).append(given)
                self._note_format(f"{key}{DROPOUT_INPUT}", inputs[0])
            self.digests.setdefault(key, []).append(short_digest(array))
            self._note_format(key, value)
            if np.isfinite(array).all():
                self.sketches.setdefault(f"forward {key}", _sampled(array))

        return hook

    def _note_format(self, key: str, value: torch.Tensor) -> None:
        if value.dtype != torch.float32:
            self.formats[key] = str(value.dtype).removeprefix("torch.")

    def named(self) -> tuple[tuple[str, str | None], ...]:
        """Return one digest per module call."""
        return tuple((name, _joined(found)) for name, found in self.digests.items())


def _joined(digests: list[str | None]) -> str | None:
    """Return one digest of several, `None` if one of them is missing."""
    if len(digests) == 1 or None in digests:
        return None if None in digests else digests[0]
    return digest_json(digests)[:16]


class _LegObserver(Observer):
    """Observer that digests the step, beside the training's own."""

    def __init__(self, engine: Engine, *, is_clipped: bool) -> None:
        self._engine, self._is_clipped = engine, is_clipped
        self.bits: dict[str, int] = {}
        self.outputs = _Outputs(engine.bare)
        self.fed: dict[str, list[str | None]] = {}
        self.gradients: tuple[tuple[str, str | None], ...] = ()
        self.clipped_gradient: tuple[tuple[str, str | None], ...] = ()
        self.sketches: list[tuple[str, tuple[float, ...]]] = []

    def feeds(self, local: Batch, micro: int) -> None:  # noqa: ARG002 - an observer's signature
        for name in (name for name in BATCH_FIELDS if name in local):
            self.fed.setdefault(name, []).append(short_digest(host_array(local[name])))
        if not self.bits and (attend := attention_function(self._engine.bare)) is not None:
            self.bits = measure_attention(attend, self._engine.ranks.device, self._engine.precision)
        self.outputs.feeds()

    def backward_done(self) -> None:
        """Digest the gradients, then scale them by a power of two, so that clipping acts or does not, as required."""
        gradients = named_gradients(self._engine.bare)
        self.gradients = self._digests("gradient", gradients)
        wanted = self._engine.spec.optimizer.max_grad_norm * (2.0 if self._is_clipped else 0.25)
        norm = math.sqrt(sum(float(torch.linalg.vector_norm(value).square()) for value in gradients.values()))
        if math.isfinite(norm) and (norm < wanted if self._is_clipped else norm > wanted):
            factor = 2.0 ** (math.frexp(wanted)[1] - math.frexp(norm or 1.0)[1] + 1)
            for value in gradients.values():
                value.mul_(factor)

    def clipped(self) -> None:
        """Digest the last clipped gradient: the factor of all others is the same."""
        self.clipped_gradient = _digests(dict(list(named_gradients(self._engine.bare).items())[-1:]))

    def weights(self) -> tuple[tuple[str, str | None], ...]:
        """Return the digests of the weights after the step."""
        return self._digests("weight", dict(self._engine.bare.named_parameters()))

    def _digests(self, stage: str, tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, str | None], ...]:
        arrays = {name: host_array(value) for name, value in tensors.items()}
        self.sketches += [(f"{stage} {name}", _sampled(array)) for name, array in arrays.items()]
        return _digests(tensors)


def _fed(arrays: Mapping[str, NDArray[Any]]) -> tuple[tuple[str, str | None], ...]:
    """Return the digests of what the evaluation read: of other rows or hidden tokens, the labels are others, too."""
    return tuple((name, short_digest(arrays[name])) for name in ("inputs", "labels"))


def _digests(tensors: Mapping[str, torch.Tensor]) -> tuple[tuple[str, str | None], ...]:
    """Return (name, digest) of tensors, hashed in threads."""
    arrays = [host_array(value) for value in tensors.values()]
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        return tuple(zip(tensors, pool.map(short_digest, arrays), strict=True))


@dataclass(frozen=True)
class LegSetting:
    """What the legs of one training share."""

    weights: Mapping[str, torch.Tensor]
    """The shipped weights, from which each leg starts."""
    places: frozenset[int]
    """Steps before which a leg runs."""
    evaluate: Callable[[Engine, int], tuple[EvaluationEvidence, dict[str, NDArray[Any]]]]
    """The training's evaluation of a few rows, with its arrays, after a number of steps."""
    alone: Callable[[Ranks], contextlib.AbstractContextManager[None]]
    """Context in which the training's observer numbers rows as a single process does."""


class LegRunner:
    """Runs legs beside a training, and keeps their evidence."""

    def __init__(self, context: Context, setting: LegSetting, found: list[dict[str, Any]]) -> None:
        self._context, self._ranks, self._setting, self._found = context, context.ranks, setting, found
        self._lost: dict[str, str] = {}
        self._unportable = ""
        self._differing: list[RankDifference] = []

    def before(self, engine: Engine, step: int, batch: Batch) -> None:
        """Run the leg that is due before `step`, if any, on the first rows of its batch."""
        if step not in self._setting.places or self._lost or self._unportable:
            return
        leg = None
        with auxiliary("leg", self._context, self._lost):
            try:
                if not self._found:
                    check_products(self._ranks.device)
                leg = self._run(engine, step, batch)
            except UnportableOperationError as error:
                self._unportable = error.operation
        self._unportable = next(filter(None, self._ranks.gather(self._unportable)), "")
        if leg is not None and not self._lost and not self._unportable:
            self._compare_ranks(leg)
            self._found.append(leg.to_json())

    def _compare_ranks(self, leg: CurveLeg) -> None:
        """Keep the first difference of each process whose leg differs from most others'."""
        for rank, known, other in unlike_most(self._ranks, leg):
            place = next(curve_leg_parts(known, other), None)
            if place is not None:
                stage, name = place
                formats = other_formats(known, other, stage, name)
                self._differing.append(RankDifference(rank=rank, at=leg.at, stage=stage, name=name, formats=formats))

    def _run(self, engine: Engine, step: int, batch: Batch) -> CurveLeg:
        rows = leg_rows(
            batch["attention_mask"].numpy(), (engine.spec.seed, step), engine.spec.optimizer.accumulation_steps
        )
        few = {name: values[rows] for name, values in batch.items()}
        alone = Ranks(device=self._ranks.device)
        observer = _LegObserver(engine, is_clipped=step > 0)
        evaluated = _Outputs(engine.bare)
        with (
            _borrowed(engine, self._setting.weights, alone, Observers(observer, engine.observer)),
            self._setting.alone(alone),
            # Compiled kernels are no portable operations.
            without_compiler(),
            portable_arithmetic(_SLICES),
        ):
            with observer.outputs.watching():
                outcome = engine.step(step, few)
            weights, loss = observer.weights(), outcome.loss(alone)
            self._context.keep_bits("learn", observer.bits)
            with evaluated.watching(), _mirrored(engine.bare):
                evaluation, arrays = self._setting.evaluate(engine, step)
        return CurveLeg(
            at=step,
            fed=tuple((name, _joined(found)) for name, found in observer.fed.items()),
            training=PortableStep(
                step=0, loss=None if finite(loss) is None else loss.hex(), outputs=observer.outputs.named(),
                gradients=observer.gradients, weights=weights,
                sketches=(*observer.outputs.sketches.items(), *observer.sketches),
            ),
            clipped=observer.clipped_gradient,
            evaluation=evaluation,
            evaluated=(*_fed(arrays), *evaluated.named()),
            formats=observer.outputs.formats, is_mirrored=True,
        )  # fmt: skip

    def evidence(self) -> CurveLegs:
        """Return the evidence of all legs so far."""
        return CurveLegs(
            legs=tuple(CurveLeg.model_validate(each) for each in self._found), unportable=self._unportable,
            lost=self._lost.get("leg", ""), ranks=tuple(self._differing),
        )  # fmt: skip


@contextlib.contextmanager
def _mirrored(model: torch.nn.Module) -> Iterator[None]:
    """Subtract from each row's logits those of the opposite row of its batch.

    Answers are then different from row to row, and close, so that the way in which they are chosen and counted shows.
    """

    def hook(_model: torch.nn.Module, _given: Any, outputs: Any) -> None:
        outputs.logits = outputs.logits - outputs.logits.flip(0)

    handle = model.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _borrowed(engine: Engine, weights: Mapping[str, torch.Tensor], ranks: Ranks, observer: Observer) -> Iterator[None]:
    """Give the engine a state that is equal everywhere, and its own state back at the end.

    The training's tensors are set aside, not copied: no leg can change one of them.
    """
    generators, parameters = read_states(), named_once(engine.bare)
    data = {name: value.data for name, value in parameters.items()}
    states = {value: dict(state) for value, state in engine.optimizer.state.items()}
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in engine.optimizer.param_groups
    ]
    schedule, scaler = dict(vars(engine.schedule)), engine.scaler.state_dict() if engine.scaler else None
    live = engine.ranks, engine.model, engine.observer
    modes = {module: module.training for module in engine.bare.modules()}
    try:
        engine.ranks, engine.model, engine.observer = ranks, engine.bare, observer
        _impose(engine, weights, parameters, states)
        make_portable(engine.optimizer)
        if engine.scaler:
            engine.scaler.load_state_dict({**(scaler or {}), "scale": _LOSS_SCALE})
        yield
    finally:
        for name, value in parameters.items():
            value.data, value.grad = data[name], None
        engine.optimizer.state.clear()
        engine.optimizer.state.update(states)
        for group, saved in zip(engine.optimizer.param_groups, groups, strict=True):
            group.update(saved)
        vars(engine.schedule).update(schedule)
        if engine.scaler and scaler is not None:
            engine.scaler.load_state_dict(scaler)
        engine.ranks, engine.model, engine.observer = live
        for module, mode in modes.items():
            module.training = mode
        drawn = {name for name, state in read_states().items() if state != generators.get(name)}
        restore_states(pack_states({name: state for name, state in generators.items() if name in drawn}))


def _impose(
    engine: Engine,
    weights: Mapping[str, torch.Tensor],
    parameters: Mapping[str, torch.nn.Parameter],
    states: Mapping[torch.Tensor, dict[str, Any]],
) -> None:
    """Set the shipped weights; the optimizer keeps the keys and counts of its state, with moments from the weights."""
    for name, value in parameters.items():
        shipped = weights[name].to(device=value.device, dtype=value.dtype, copy=True)
        if value in states:
            small = shipped * _MOMENT
            engine.optimizer.state[value] = {
                key: (small * small if "sq" in key else small.clone()).to(entry.dtype)
                if isinstance(entry, torch.Tensor) and entry.shape == value.shape and entry.dim()
                else entry.clone() if isinstance(entry, torch.Tensor) else entry
                for key, entry in states[value].items()
            }  # fmt: skip
        value.data = shipped
