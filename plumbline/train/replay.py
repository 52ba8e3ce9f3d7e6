"""Input of an experiment, which is untrusted: the request, the reference's tensors, and what to capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from plumbline.schema.base import read_model
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.experiment import EXPERIMENT_NAME, Capture, Experiment, Replay
from plumbline.schema.stage import Stage
from plumbline.train.digests import host_array
from plumbline.train.failure import is_of_system

MAX_CAPTURE_BYTES = 512 << 20
_MAX_SOURCE_BYTES = 4 << 30
_NEEDS_SOURCE = {"batch", "weights", "rng", "forward", "gradient", "clipped"}


class Bundle:
    """Experiment with its tensors."""

    def __init__(self, experiment: Experiment, sources: dict[str, dict[str, torch.Tensor]]) -> None:
        self.experiment, self._sources = experiment, sources

    def has(self, stage: Stage) -> bool:
        """Return whether the experiment restores this kind of value."""
        return any(replay.stage == stage for replay in self.experiment.replays)

    def replays(self, stage: Stage, step: int | None = None) -> Iterator[tuple[Replay, dict[str, torch.Tensor]]]:
        """Yield each value that the experiment restores at `step`, with its tensors."""
        for replay in self.experiment.replays:
            if replay.stage == stage and (step is None or replay.step is None or replay.step == step):
                yield replay, self._sources.get(replay.source or "", {})

    def tensors(self, stage: Stage, step: int) -> dict[str, torch.Tensor]:
        """Return the tensors to impose at `step`, by name."""
        chosen: dict[str, torch.Tensor] = {}
        prefix = f"{stage}/{step}/"
        for replay, source in self.replays(stage, step):
            held = {key.removeprefix(prefix): value for key, value in source.items() if key.startswith(prefix)}
            missing = [name for name in replay.fields if name not in held]
            if missing and replay.step is not None:
                raise InvalidInputError("is not in the bundle", where=str(replay.source), key=f"{prefix}{missing[0]}")
            chosen |= {name: value for name, value in held.items() if not replay.fields or name in replay.fields}
        return chosen

    def rng(self, step: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]] | None:
        """Return the packed generator states to restore at `step`, or `None`."""
        for replay, source in self.replays("rng", step):
            packed = source.get(f"rng/{step}")
            if packed is None or packed.dtype != torch.uint8:
                raise InvalidInputError("is not in the bundle", where=str(replay.source), key=f"rng/{step}")
            return np.asarray(packed.numpy())
        return None


class Keeper:
    """Store of an experiment's captured tensors, with a size limit."""

    def __init__(self, captures: Sequence[Capture] = ()) -> None:
        self._captures = captures
        self._bytes = 0
        self.arrays: dict[str, NDArray[Any]] = {}

    def wants(self, stage: str, step: int, name: str) -> bool:
        """Return whether the experiment captures this kind of tensor at `step`."""
        return any(
            capture.stage == stage and capture.step == step and (not capture.names or name in capture.names)
            for capture in self._captures
        )

    def keep_all(self, stage: str, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        """Store the requested ones of some tensors."""
        for name, value in tensors.items():
            if self.wants(stage, step, name):
                self.keep(stage, step, name, host_array(value))

    def keep(self, stage: str, step: int, name: str, array: NDArray[Any]) -> None:
        """Store a requested tensor."""
        self._bytes += array.nbytes
        if self._bytes > MAX_CAPTURE_BYTES:
            text, hint = f"more than {MAX_CAPTURE_BYTES} bytes", "capture fewer tensors"
            raise InvalidInputError(text, where="experiment", key="captures", hint=hint)
        self.arrays[name if stage == "weights" else f"{stage}/{step}/{name}"] = array.copy()


class _Imposed(torch.autograd.Function):
    """Autograd function: replace a value forward, pass the gradient unchanged backward."""

    @staticmethod
    def forward(context: Any, computed: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return wanted.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ARG004
        return gradients[0], None


def check_shape(key: str, given: torch.Tensor, own: torch.Tensor) -> None:
    """Raise `InvalidInputError` unless a value has the shape of the run's own."""
    if given.shape != own.shape:
        shapes = f"{tuple(given.shape)}, the run's is {tuple(own.shape)}"
        raise InvalidInputError(f"has the shape {shapes}", where="experiment", key=key)


def imposed(key: str, value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Return `wanted` in the place of `value`, to which its gradient flows."""
    check_shape(key, wanted, value)
    found: torch.Tensor = _Imposed.apply(value, wanted.to(value))  # type: ignore[no-untyped-call]
    return found


def _read_source(folder: Path, name: str) -> dict[str, torch.Tensor]:
    path = folder / name
    if path.is_symlink() or not path.is_file():
        raise InvalidInputError("is not in the bundle", where=str(folder), key=name)
    if path.stat().st_size > _MAX_SOURCE_BYTES:
        raise InvalidInputError(f"is larger than the {_MAX_SOURCE_BYTES} bytes allowed", where=str(path))
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        if is_of_system(error):
            raise
        raise InvalidInputError(f"not a safetensors file: {error}", where=str(path)) from error


def read_bundle(folder: Path) -> Bundle:
    """Read an experiment bundle from `folder`."""
    experiment = read_model(Experiment, folder / EXPERIMENT_NAME)
    for replay in experiment.replays:
        if replay.stage in _NEEDS_SOURCE and replay.source is None:
            raise InvalidInputError(f"a replay of {replay.stage} needs a source", where=EXPERIMENT_NAME, key="source")
    names = sorted({replay.source for replay in experiment.replays if replay.source})
    return Bundle(experiment, {name: _read_source(folder, name) for name in names})
