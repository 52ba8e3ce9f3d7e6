"""Start weights and buffers of a captured training, shared by a file."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from plumbline.schema.errors import ConfigurationError
from plumbline.train.ranks import Ranks


def load_start(
    model: nn.Module, file: str | PathLike[str] | None, ranks: Ranks
) -> Literal["own", "written", "given"]:  # fmt: skip
    """Begin with the values in `file`; write it, whole, if it does not exist.

    Raises `ConfigurationError` if its tensors are not the model's.
    """
    if file is None:
        return "own"
    path = Path(file)
    own = dict(model.state_dict(keep_vars=True))
    if ranks.gather(path.exists())[0]:
        values = load_file(path)
        for name, value in own.items():
            if name not in values or values[name].shape != value.shape:
                hint = "the file is of another model; name a new one"
                raise ConfigurationError("does not hold this tensor's values", where=str(path), key=name, hint=hint)
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(values[name])
        return "given"
    if ranks.is_first:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.part")
        save_file({name: value.detach().cpu().contiguous().clone() for name, value in own.items()}, part)
        part.replace(path)  # whole, before another process reads it
    return "written"
