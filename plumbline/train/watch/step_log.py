"""Recorder of a part's log: batches, rates, losses, norms, weights, generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from plumbline.schema.digest import SHORT_DIGITS, digest_array
from plumbline.schema.evidence import BATCH_FIELDS
from plumbline.schema.portable_parts import UNTIMED
from plumbline.schema.sketch import keys, to_mark
from plumbline.schema.step_log import MAX_LOGGED, Inconsistency, WatchedPart
from plumbline.train.batches import Batch
from plumbline.train.digests import checksum, finite, host_arrays, read_losses, shared_mark, whole_tensor
from plumbline.train.engine import Engine, Observer, StepOutcome
from plumbline.train.models.dropout import PortableDropout
from plumbline.train.numerics import digest_states, read_states
from plumbline.train.optimizers import shown_rates

_OF_DEVICES = ("torch", "cuda:0")
"""Generators that dropout draws from; libraries draw from the others."""
_LISTS = ("num_rows", "losses", "learning_rates", "gradient_norms", "clipped_norms", "weights")


class StepLogger(Observer):
    """Observer that stores checksums, losses and norms on the device, without synchronisation.

    Every step adds a few small kernels. Nothing is read before `read`.
    """

    def __init__(
        self, engine: Engine, columns: dict[str, Any] | None = None, *, most: int = MAX_LOGGED, whole: bool = False
    ) -> None:
        """Continue the columns of a checkpoint, if given. After `most` steps no loss is stored.

        `whole`: weights and all generators of each step, as in the probe.
        """
        self._engine, self._ranks, self._most, self._whole = engine, engine.ranks, most, whole
        self.columns: dict[str, Any] = columns if columns is not None else {}
        """The log so far, as JSON."""
        self.columns |= {name: self.columns.get(name, []) for name in (*_LISTS, "inconsistent")}
        self.columns |= {name: self.columns.get(name, {}) for name in ("batches", "generators")}
        kinds = (nn.Dropout, PortableDropout)
        self._dropout = sorted({float(each.p) for each in engine.bare.modules() if isinstance(each, kinds)})
        self._num_steps = len(self.columns["losses"])
        self._keys: dict[tuple[int, int, int], torch.Tensor] = {}
        self._names: list[str] = []
        self._rows = 0
        self._fed: torch.Tensor | None = None
        self._losses: list[list[tuple[torch.Tensor, float]]] = []
        self._given: list[tuple[int, torch.Tensor]] = []
        """(rows, checksums of the fields) of each step's part of the batch."""
        self._rates: list[float | tuple[float, ...]] = []
        self._norms: list[torch.Tensor] = []
        self._clipped: list[torch.Tensor] = []
        self._weights: dict[int, torch.Tensor] = {}
        self._generators: dict[int, dict[str, str]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Log the engine's steps within the context: no window, check or evaluation beside them."""
        own = self._engine.observer
        self._engine.observer = Observer(self, own)
        try:
            yield
        finally:
            self._engine.observer = own

    def starts(self, step: int) -> None:
        """Reset the row count for a new step, and record the generators of the first one."""
        self._rows, self._fed = 0, None
        if not step or self._whole:
            self._draws(step)

    def feeds(self, local: Batch, first_row: int) -> None:
        """Add checksums of the micro-batch rows before the forward pass."""
        if self._num_steps >= MAX_LOGGED:
            return
        rows = len(local["labels"])
        self._names = [name for name in BATCH_FIELDS if name in local]
        fields = [local[name].reshape(rows, -1) for name in self._names]
        total = torch.stack([(values * self._key(first_row, rows, values)).sum() for values in fields])
        self._fed = total if self._fed is None else self._fed + total
        self._rows += rows

    def _key(self, first: int, rows: int, values: torch.Tensor) -> torch.Tensor:
        place = (first, rows, values.shape[1])
        if place not in self._keys:
            whole = torch.from_numpy(keys(first + rows, values.shape[1]).copy())
            self._keys[place] = whole[first:].to(values.device)
        return self._keys[place]

    def clipped(self) -> None:
        """Record the clipped gradient norm of the first steps, and the first step's weights.

        Code that initialises a layer at its first call has changed them since the start.
        """
        if not self._num_steps:
            self._weights[0] = self._sum()
        if self._num_steps < UNTIMED:
            parameters = self._engine.bare.parameters()
            norms = [torch.linalg.vector_norm(each.grad) for each in parameters if each.grad is not None]
            self._clipped.append(whole_tensor(torch.linalg.vector_norm(torch.stack(norms or [torch.zeros(())]))))

    def done(self, outcome: StepOutcome) -> None:
        """Record the step's batch, losses, norm and learning rate."""
        if self._num_steps < self._most:
            self._losses.append(outcome.losses)
        if self._fed is not None:
            self._given.append((self._rows, self._fed))
            self._rates.append(shown_rates(outcome.learning_rates))
            if outcome.gradient_norm is not None:
                self._norms.append(whole_tensor(outcome.gradient_norm))
        self._num_steps += 1
        if self._whole:
            self._weights[self._num_steps] = self._sum()

    def weigh(self, done: int) -> None:
        """Record checksums of weights and random generators after `done` steps."""
        self._weights[done] = self._sum()
        self._draws(done)

    def compare(self, done: int) -> None:
        """Compare the processes' weights after `done` steps, without recording them."""
        if self._ranks.world > 1:
            self._weights[done] = self._sum()

    def _sum(self) -> torch.Tensor:
        return checksum(self._engine.bare.parameters(), self._ranks.device)

    def _draws(self, done: int) -> None:
        states = {name: state for name, state in read_states().items() if name in _OF_DEVICES or self._whole}
        self._generators[done] = {name: each[:SHORT_DIGITS] for name, each in digest_states(states).items()}

    def read(self) -> list[float]:
        """Read what the device has since the last call, merge all processes', and return the losses."""
        first = len(self.columns["losses"])
        sums = [fed.tolist() for fed in host_arrays([fed for _, fed in self._given])]
        read = iter(read_losses(loss for losses in self._losses for loss, _ in losses))
        weights = [digest_array(each)[:SHORT_DIGITS] for each in host_arrays(list(self._weights.values()))]
        mine = {
            "num_rows": [rows for rows, _ in self._given], "sums": sums, "learning_rates": self._rates,
            "losses": [float(sum(next(read) * share for _, share in losses)) for losses in self._losses],
            "gradient_norms": [finite(norm) for norm in read_losses(self._norms)],
            "weights": list(zip(self._weights, weights, strict=True)), "generators": list(self._generators.items()),
        }  # fmt: skip
        everyone = self._ranks.gather(mine)
        self._compare(first, everyone)
        whole = mine | {
            "num_rows": [sum(rows) for rows in _by_step(everyone, "num_rows")],
            "losses": [float(sum(losses)) for losses in _by_step(everyone, "losses")],
            "weights": [(done, mark) for done, mark in mine["weights"] if done in self._generators or self._whole],
            "clipped_norms": [finite(norm) for norm in read_losses(self._clipped)],
        }  # fmt: skip
        for each in _by_step(everyone, "generators"):
            done, states = each[0]
            for name in states:
                shown = shared_mark([of_process.get(name) for _, of_process in each])
                self.columns["generators"].setdefault(name, []).append((done, shown))
        totals = [[sum(fields) for fields in zip(*step, strict=True)] for step in _by_step(everyone, "sums")]
        for place, name in enumerate(self._names):
            self.columns["batches"].setdefault(name, []).extend(to_mark(step[place]) for step in totals)
        losses: list[float] = whole["losses"]
        for name in _LISTS:
            self.columns[name] += [finite(loss) for loss in losses] if name == "losses" else whole[name]
        self._given, self._losses, self._rates, self._norms, self._clipped = [], [], [], [], []
        self._weights, self._generators = {}, {}
        return losses

    def _compare(self, first: int, everyone: Sequence[dict[str, Any]]) -> None:
        """Record the first step at which a process differs from the first one, for each kind of number."""
        known = {each["part"] for each in self.columns["inconsistent"] if each["event"] == "processes"}
        columns: dict[WatchedPart, str] = {
            "learning rate": "learning_rates", "gradients": "gradient_norms", "weights": "weights",
        }  # fmt: skip
        for part, name in columns.items():
            for place, values in enumerate(_by_step(everyone, name)):
                rank = next((rank for rank, value in enumerate(values) if value != values[0]), None)
                if rank is not None and part not in known:
                    known.add(part)
                    step = values[0][0] if part == "weights" else first + place
                    found = Inconsistency(step=step, rank=rank, part=part, event="processes")
                    self.columns["inconsistent"].append(found.to_json())

    def log(self) -> dict[str, Any]:
        """Return the columns read so far, with the rates of the model's dropout."""
        return {**self.columns, "dropout": self._dropout}

    def close(self) -> None:
        """Release the engine and model; keep the columns."""
        del self._engine


def _by_step(everyone: Sequence[dict[str, Any]], name: str) -> list[tuple[Any, ...]]:
    """Return a column's values of all processes, step by step."""
    return list(zip(*(mine[name] for mine in everyone), strict=True))
