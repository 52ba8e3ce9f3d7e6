"""Fourth held-out set: faults of the evaluation."""

from __future__ import annotations

from typing import Any

import torch

from bench.faults.injectors.patching import replace_everywhere, wrap_method
from bench.faults.injectors.training import _entropy, _loaded
from plumbline.train import engine, evaluation


def averaged_weights_evaluated() -> None:
    """The evaluation uses a moving average of the weights."""
    averages: dict[str, Any] = {}

    def wrap(step: Any) -> Any:
        def stepped(self: Any, number: int, batch: Any) -> Any:
            outcome = step(self, number, batch)
            if self.precision == "fp32":
                for name, value in self.bare.named_parameters():
                    before = averages.get(name, value.detach()) if number else value.detach()
                    averages[name] = before * 0.5 + value.detach() * 0.5
            return outcome

        return stepped

    def evaluated(evaluate: Any) -> Any:
        def run(model: Any, *args: Any, **rest: Any) -> Any:
            kept = {name: value.detach().clone() for name, value in model.named_parameters()}
            for name, value in model.named_parameters():
                value.data.copy_(averages[name])
            try:
                return evaluate(model, *args, **rest)
            finally:
                for name, value in model.named_parameters():
                    value.data.copy_(kept[name])

        return run

    wrap_method(engine.Engine, "step", wrap)
    replace_everywhere("evaluate", evaluated, among=("probe", "experiment"))


def _added(change: Any) -> None:
    """Change the batches that the evaluation sums up."""

    class Sums(evaluation._Sums):
        def add(self, batch: Any, logits: Any, loss: float | None) -> None:
            change(self, super().add, batch, logits, loss)

    evaluation._Sums = Sums


def lowest_score_predicted() -> None:
    """The evaluation predicts the class of the lowest score."""

    def change(sums: Any, add: Any, batch: Any, logits: Any, loss: Any) -> None:
        right = sums._right
        add(batch, logits, loss)
        chosen = logits.argmin(axis=-1).astype("int64")
        sums._kept["predictions"][-1] = chosen
        sums._right = right + int((chosen == batch["labels"].numpy()).sum())

    _added(change)


def answers_of_two_processes_interleaved() -> None:
    """The evaluation gathers the answers of two processes in turn, the labels in order."""

    def change(_sums: Any, add: Any, batch: Any, logits: Any, loss: Any) -> None:
        half = (len(logits) + 1) // 2
        places = [place // 2 + half * (place % 2) for place in range(len(logits))]
        add(batch, logits[places], loss)

    _added(change)


def answers_of_the_first_process_alone() -> None:
    """The evaluation counts the first half of each batch (Nota-NetsPresso/netspresso-trainer#342)."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            yield {name: value[: size // 2] for name, value in batch.items()}

    _loaded(change)


def smoothed_evaluation_loss() -> None:
    """The evaluation's loss smooths its labels, the training's does not."""
    busy = [False]

    def during(evaluate: Any) -> Any:
        def evaluated(*args: Any, **rest: Any) -> Any:
            busy[0] = True
            try:
                return evaluate(*args, **rest)
            finally:
                busy[0] = False

        return evaluated

    replace_everywhere("evaluate", during, among=("probe", "experiment"))
    _entropy(
        lambda entropy: (
            lambda scores, labels, *args, **rest: (
                entropy(scores, labels, label_smoothing=0.1) if busy[0] else entropy(scores, labels, *args, **rest)
            )
        )
    )


def hidden_tokens_drawn_anew() -> None:
    """The evaluation hides the tokens of a different epoch."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            numbers = batch["row_ids"].numpy()
            again = rows._fetch(numbers, numbers * 0 + 1)
            yield {name: torch.from_numpy(again[name].copy()) for name in batch}

    _loaded(change)


def evaluated_as_second_texts() -> None:
    """The evaluation marks every token as part of a second text."""

    def change(make: Any, rows: Any, size: int, device: Any) -> Any:
        for batch in make(rows, size, device):
            yield {**batch, "token_type_ids": torch.ones_like(batch["token_type_ids"])}

    _loaded(change)
