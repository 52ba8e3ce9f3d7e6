"""Callbacks for Hugging Face's Trainer and for Lightning, which record the loops of these libraries."""

from __future__ import annotations

from typing import Any

from plumbline.train.capture.session import Capture


class _Recording:
    """Part of a callback that records one training."""

    _run: Capture | None = None
    _num_updates = 0

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Write the record of a training that ended early."""
        if self._run is not None:
            self._run.__exit__(None, None, None)


def hugging_face_callback(folder: str | None = None, *, steps: int, **settings: Any) -> Any:
    """Return a callback: `Trainer(..., callbacks=[hugging_face_callback("runs/aws", steps=20)])`.

    `settings` are those of `capture`. Batch and loss come from the model's own call.
    """
    from transformers import TrainerCallback

    class Callback(_Recording, TrainerCallback):  # type: ignore[misc]
        """Recorder of a Trainer's loop."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - a callback
            """Hook model and optimizer."""
            own = {"seed": args.seed, **settings}
            self._run = Capture(folder, given["model"], given["optimizer"], steps=steps, **own).__enter__()

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - a callback
            """End a step, which may have had several micro-batches."""
            if self._run is not None:
                self._run.step()

    return Callback()


def lightning_callback(folder: str | None = None, *, steps: int, **settings: Any) -> Any:
    """Return a callback: `Trainer(callbacks=[lightning_callback("runs/aws", steps=20)])`.

    A module without a `forward` of its own shows the calls of its children.
    """
    from lightning.pytorch import Callback as Base  # type: ignore[import-not-found]
    from lightning.pytorch import LightningModule

    class Callback(_Recording, Base):  # type: ignore[misc]
        """Recorder of a Lightning loop."""

        def on_train_start(self, trainer: Any, module: Any) -> None:
            """Hook model and optimizers."""
            models = module if type(module).forward is not LightningModule.forward else {
                name: child for name, child in module.named_children() if any(True for _ in child.parameters())
            }  # fmt: skip
            self._run = Capture(folder, models, trainer.optimizers, steps=steps, **settings).__enter__()
            self._num_updates = trainer.global_step

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:  # noqa: ARG002 - a callback
            """End a step, which may have had several micro-batches."""
            if self._run is not None and trainer.global_step > self._num_updates:
                self._num_updates = trainer.global_step
                self._run.step()

    return Callback()
