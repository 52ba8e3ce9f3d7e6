"""First pass in evaluation mode between the steps of a loop, and the modules that draw dropout in it."""

from __future__ import annotations

from contextlib import ExitStack

from torch import nn

from plumbline.train.proof.draws import NativeDraws, drops
from plumbline.train.proof.isolation import replaced_function
from plumbline.train.watch.calls import hookable


class FirstEvaluation:
    """Hooks on the modules of one pass in evaluation mode, the first one."""

    def __init__(self) -> None:
        self._draws: NativeDraws | None = None
        self._hooks = ExitStack()

    def begins(self, model: nn.Module, root: nn.Module) -> None:
        """Watch the call of `root` that begins, if it is the first one in evaluation mode; names are the model's."""
        is_evaluation = not any(each.training for each in root.modules())
        if self._draws is not None or not is_evaluation or not drops(root) or replaced_function():
            return
        self._draws = draws = NativeDraws()
        begun, enter = list[int](), self._hooks.enter_context
        inside = set(root.modules()) - {root}  # whose own call has begun
        for name, each in hookable(model):
            if each in inside:
                enter(each.register_forward_pre_hook(lambda *_: begun.append(len(draws.found))))
                enter(each.register_forward_hook(lambda *_, name=name: draws.name(begun.pop(), name)))
        enter(draws)

    def ends(self) -> None:
        """End the watch with the root's call."""
        self._hooks.close()

    @property
    def drawn(self) -> tuple[str, ...]:
        """Return the modules that drew dropout."""
        found = self._draws.found if self._draws is not None else ()
        return tuple(dict.fromkeys(draw.name or "model" for draw in found))
