"""Check native steps: compare each tensor with its fp64 definition.

No reference and no earlier step is needed: a module's output is repeated from its own inputs, a gradient from what the
backward pass gave its module, an update from the optimizer's own state. One operation rounds once, so that nothing has
to be known of how errors grow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch

from plumbline.schema.proof import Draws, Proof
from plumbline.schema.tolerance import is_off, is_over, native_norm_limit
from plumbline.train.batches import Batch
from plumbline.train.checkpoint import read_moments
from plumbline.train.compat.transformers import attention_of
from plumbline.train.digests import checksum, read_losses
from plumbline.train.engine import Engine, Observer, StepOutcome
from plumbline.train.models.families import PORTABLE_DROPOUT
from plumbline.train.proof.definitions import other_settings
from plumbline.train.proof.distance import Found, Lost, changed_state, error_of, moved_size, read, size_of, unit_of
from plumbline.train.proof.draws import undrawn
from plumbline.train.proof.modules import ModuleProofs
from plumbline.train.proof.repeated import NUMBER_TRIALS, Repeated, chances
from plumbline.train.proof.update import UpdateCheck
from plumbline.train.watch.summaries import aside

_CLIPPING = 1e-6
"""What torch adds to the norm by which it divides."""


class Prover(Observer):
    """Observer that checks some steps against fp64, without changing their bits."""

    def __init__(self, engine: Engine, steps: Collection[int], proofs: list[dict[str, Any]] | None = None) -> None:
        """Create the checker; `proofs` is the list of results to extend."""
        self._engine, self._steps = engine, set(steps)
        self.proofs: list[dict[str, Any]] = [] if proofs is None else proofs
        self._step = 0
        self._names: dict[torch.Tensor, str] = {
            value: name for name, value in engine.bare.named_parameters() if value.requires_grad
        }
        self._found: list[Found] = []
        self._lost = Lost()
        self._modules: ModuleProofs | None = None
        self._labels: torch.Tensor | None = None
        self._scale, self._skipped = 1.0, False
        self._sizes: dict[torch.Tensor, torch.Tensor] = {}
        self._norm = torch.zeros(())
        self._update: UpdateCheck | None = None
        self._between: tuple[torch.Tensor, torch.Tensor] | None = None
        self._changed: list[tuple[int, str, torch.Tensor]] = []
        """(place of the proof, what, whether it changed), not read yet."""

    def add(self, step: int) -> None:
        """Check one more step."""
        self._steps.add(step)

    def train(self, step: int, batch: Batch) -> StepOutcome:
        """Train on a global batch, and check the step if selected."""
        if self._between is not None:
            self._compare_state()
        if step not in self._steps:
            return self._engine.step(step, batch)
        if self._engine.is_sharded:
            self.proofs.append(Proof(step=step, errors=(), tensors=0, lost="its weights are sharded").to_json())
            return self._engine.step(step, batch)
        observer = self._engine.observer
        self._engine.observer = Observer(self, observer)
        try:
            return self._engine.step(step, batch)
        finally:
            self._engine.observer = observer
            if self._modules is not None:
                self._modules.close()
            self._modules = self._update = None
            chances.cache_clear()

    def _compare_state(self) -> None:
        """Record whether weights or optimizer state changed since the checked step."""
        before, self._between = self._between, None
        for name, kept, now in zip(("weights", "moments"), before or (), self._state(), strict=True):
            self._changed.append((len(self.proofs) - 1, name, (kept != now).any()))

    def finish(self) -> None:
        """Read from the device which state changed between two steps."""
        changes, self._changed = self._changed, []
        found = read_losses([change for _, _, change in changes])
        for (place, name, _), is_changed in zip(changes, found, strict=True):
            if is_changed:
                self.proofs[place]["errors"].append(changed_state(name).to_json())

    def _state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return checksums of weights and optimizer moments."""
        moments = [entry for entry in read_moments(self._engine).values() if entry.dim()]
        device = self._engine.ranks.device
        return checksum(self._names, device), checksum(moments, device)

    def starts(self, step: int) -> None:
        """Hook the modules, unless the model is compiled."""
        self._step, self._found, self._lost = step, [], Lost()
        self._scale = self._engine.scaler.get_scale() if self._engine.scaler else 1.0
        self._update = UpdateCheck(self._engine.bare, self._engine.optimizer)
        if not self._engine.is_compiled:
            engine = self._engine
            self._modules = ModuleProofs(engine.bare, engine.ranks, self._found)
            self._lost = self._modules.lost
        if self._update.lost:
            self._lost["optimizer"] = self._update.lost

    def feeds(self, local: Batch, first_row: int) -> None:  # noqa: ARG002 - an observer's signature
        """Store the labels, and hook the forward pass."""
        self._labels = local["labels"]
        if self._modules is not None:
            self._modules.feeds(self._engine.precision)

    def forward_done(self, outputs: Any, loss: torch.Tensor) -> None:
        """Compare the loss, and its gradient for the logits, with their definitions."""
        if self._modules is not None:
            self._modules.forward_done()
        logits, labels = outputs.logits, self._labels
        if labels is None:
            return
        dtype, kind = logits.dtype if logits.is_cuda else loss.dtype, type(self._engine.bare).__name__
        exact, moved, means = None, None, list[torch.Tensor]()
        with self._lost.guarded("loss"):  # such as too little memory for logits in fp64
            exact, moved = self._defined(logits, labels), self._defined(logits, labels, dtype)
            means = [self._defined(logits, labels, dtype, trial)[0] for trial in range(1, NUMBER_TRIALS)]
        if exact is None or moved is None:
            return
        # CUDA's autocast rounds the probabilities' sums to the logits' format.
        error = error_of(loss, exact[0], moved_size(exact[0], dtype, moved[0], *means), dtype)
        self._found.append(Found("loss", "loss", kind, dtype, logits.shape[-1], error))
        slope, size, weight = exact[1], moved_size(exact[1], dtype, moved[1]), list[torch.Tensor]()
        loss.register_hook(lambda gradient: weight.append(gradient.detach().double()))

        def see(passed: torch.Tensor | None) -> None:
            if passed is not None:  # a compiled model's own loss takes no gradient from outside
                error = error_of(passed, slope * weight[0], size * weight[0].abs(), passed.dtype)
                self._found.append(Found("loss", "logits", kind, passed.dtype, slope.shape[-1], error))

        logits.register_hook(see)

    def _defined(
        self, logits: torch.Tensor, labels: torch.Tensor, rounded: torch.dtype | None = None, trial: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean loss and the logits' gradient, by definition."""
        repeated = Repeated((), rounded, trial)
        exact = repeated.entered(logits).requires_grad_()
        with aside(), torch.enable_grad(), repeated:
            mean = self._engine.task.defined_loss(self._engine.unpacked(exact), labels)
            (slope,) = torch.autograd.grad(mean, exact)
        return mean.detach(), slope

    def backward_done(self) -> None:
        """Compare the complete gradients with their definitions."""
        self._sizes = {value: size_of(value.grad) for value in self._names if value.grad is not None}
        self._norm = self._total()
        self._skipped = self._engine.scaler is not None and not math.isfinite(float(self._norm))
        if self._modules is not None and not self._skipped:
            given = {value: value.grad for value in self._names if value.grad is not None}
            self._modules.gradients(self._names, given, self._scale)

    def _total(self) -> torch.Tensor:
        """Return the norm of all gradients: torch's own, if it is as near to its definition as its sums can be.

        On a CPU torch sums the squares of a long gradient one after another, and loses more than any clipping should.
        """
        exact = torch.linalg.vector_norm(torch.stack(list(self._sizes.values())))
        native = [torch.linalg.vector_norm(value.grad.detach()) for value in self._sizes if value.grad is not None]
        own = torch.linalg.vector_norm(torch.stack(native)).double()
        limit = native_norm_limit(max(value.numel() for value in self._sizes))
        overflows = exact > torch.finfo(torch.float32).max ** 0.5  # in its squares: clipping leaves nothing
        return torch.where(((own - exact).abs() <= exact * limit) | overflows, own, exact)

    def clipped(self) -> None:
        """Compare the clipped gradients with their definition; copy the state before updating."""
        if self._skipped or self._update is None:
            return
        factor = (self._engine.spec.optimizer.max_grad_norm / (self._norm + _CLIPPING)).clamp_max(1.0)
        for value, size in self._sizes.items():
            if value.grad is not None:
                expected, native = size * factor, size_of(value.grad)
                least = value.numel() ** 0.5 * torch.finfo(value.grad.dtype).smallest_normal
                error = (native - expected).abs() / (expected * unit_of(value.grad.dtype) + least)
                self._found.append(Found("clipped", self._names[value], "", value.grad.dtype, len(self._sizes), error))
        self._update.before()

    def done(self, outcome: StepOutcome) -> None:
        """Compare the update with its definition; read all errors at once."""
        if self._update is not None and not self._skipped:
            for name, error in self._update.errors(outcome.learning_rates):
                self._found.append(Found("optimizer", name, self._update.kind, torch.float32, 1, error))
            others = other_settings(self._engine.bare, self._engine.optimizer, self._engine.spec.optimizer)
            kind, off = f"{self._update.kind} as the spec sets it", self._norm.new_full((), math.inf)
            self._found += [Found("optimizer", name, kind, torch.float32, 1, off) for name in others]
        self._between = self._state()
        if self._skipped:
            self._skip()
            return
        listed, formless = read(self._found)
        self._lost.update(formless)
        proof = Proof(
            step=self._step, errors=tuple(listed), tensors=len(listed), draws=self._draws(),
            lost=self._lost.text(), lacks_memory=self._lost.lacks_memory,
        )  # fmt: skip
        self.proofs.append(proof.to_json())
        self._found, self._sizes = [], {}

    def _draws(self) -> tuple[Draws, ...]:
        """Return how many elements dropout kept; of tested families also the modules that drew nothing."""
        if self._modules is None:
            return ()
        found, model = self._modules.draws.summary(), self._engine.bare
        is_tested = self._engine.spec.model.family in PORTABLE_DROPOUT and attention_of(model) in {"eager", "sdpa"}
        return (*found, *undrawn(model, {each.name for each in found})) if is_tested else found

    def _skip(self) -> None:
        """Check the next step instead of one that loss scaling skips: some of its numbers are beyond fp16."""
        self.add(self._step + 1)
        lost = "loss scaling skipped the step"
        self.proofs.append(Proof(step=self._step, errors=(), tensors=0, skipped=True, lost=lost).to_json())


def has_fault(proof: Mapping[str, Any]) -> bool:
    """Return whether a checked tensor exceeds its limit, or dropout misses its rate."""
    found = Proof.model_validate(proof)
    return any(map(is_over, found.errors)) or any(map(is_off, found.draws))
