"""Compatibility with torch 2.4 and newer: settings that some versions lack.

A setting has the same name in every record. Where a version has only an older switch, the switch is set and read under
the newer name. `UNSTATED` lists the settings that a version cannot state.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from plumbline.schema.base import Scalar
from plumbline.schema.errors import ConfigurationError

_LEAVES = (
    "", "cuda.matmul", "cudnn", "cudnn.conv", "cudnn.rnn", "mkldnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn",
)  # fmt: skip
_HAS_LEAVES = hasattr(torch.backends, "fp32_precision")
"""Since 2.9 each kind of operation has its own `fp32_precision`."""
_SWITCHED = {"cuda.matmul": "cuda.matmul", "cudnn": "cudnn", "cudnn.conv": "cudnn", "cudnn.rnn": "cudnn"}
"""Until 2.8: the module whose `allow_tf32` decides for a leaf. For oneDNN only `float32_matmul_precision` decides."""
_REDUCTIONS = (
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
    "allow_fp16_accumulation",  # since 2.7
)


def _backend(path: str) -> Any:
    module: Any = torch.backends
    for name in filter(None, path.split(".")):
        module = getattr(module, name)
    return module


def _key(path: str) -> str:
    return ".".join(filter(None, ("backends", path, "fp32_precision")))


UNSTATED = () if _HAS_LEAVES else tuple(_key(path) for path in _LEAVES if path not in _SWITCHED)
"""Names of the settings that this version has neither by themselves nor by an older switch."""


def set_fp32_precision(*, tf32: bool) -> dict[str, Scalar]:
    """Allow or forbid TF32 everywhere; return the expected settings for verification."""
    # The older switches first: the newer settings below then decide, and both show the same value.
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    precision = "tf32" if tf32 else "ieee"
    if _HAS_LEAVES:
        for path in _LEAVES:
            _backend(path).fp32_precision = precision
        return {_key(path): precision for path in _LEAVES}
    matmul = {"float32_matmul_precision": "high" if tf32 else "highest"}
    return {**{_key(path): precision for path in _SWITCHED}, **matmul}


def read_fp32_precision() -> dict[str, Scalar]:
    """Return the fp32 precision settings that torch reports."""
    if _HAS_LEAVES:
        return {_key(path): _backend(path).fp32_precision for path in _LEAVES}
    return {_key(path): "tf32" if _backend(module).allow_tf32 else "ieee" for path, module in _SWITCHED.items()}


def _reductions() -> list[str]:
    return [name for name in _REDUCTIONS if hasattr(torch.backends.cuda.matmul, name)]


def set_reductions(*, narrow: bool) -> dict[str, Scalar]:
    """Allow or forbid reduced-precision matmul reductions; return the expected settings.

    Products in fp16 never accumulate in fp16, as is torch's own default.
    """
    wanted = {name: narrow and name.endswith("_reduction") for name in _reductions()}
    for name, value in wanted.items():
        setattr(torch.backends.cuda.matmul, name, value)
    return {f"cuda.matmul.{name}": value for name, value in wanted.items()}


def read_reductions() -> dict[str, Scalar]:
    """Return whether matmuls may use reduced-precision reductions."""
    return {f"cuda.matmul.{name}": bool(getattr(torch.backends.cuda.matmul, name)) for name in _reductions()}


def adafactor(groups: list[dict[str, Any]], *, lr: float) -> torch.optim.Optimizer:
    """Return torch's Adafactor class (torch 2.5 or newer)."""
    if not hasattr(torch.optim, "Adafactor"):
        raise _too_old("adafactor", "2.5", "optimizer")
    return torch.optim.Adafactor(groups, lr=lr)


def shard(model: nn.Module, device: torch.device, world: int) -> None:
    """Shard each layer over `world` processes by FSDP2 (torch 2.6+)."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise _too_old("fsdp", "2.6", "distributed") from None
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device.type, (world,))
    for module in model.modules():
        for layer in module if isinstance(module, nn.ModuleList) else ():
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _too_old(what: str, version: str, key: str) -> ConfigurationError:
    text = f"{what} needs torch {version} or newer, this is {torch.__version__}"
    return ConfigurationError(text, where="speed", key=key, hint="install a newer torch, or leave the key out")


def default_compiler() -> str:
    """Return the default backend of `torch.compile`."""
    read = getattr(torch.compiler, "get_default_backend", None)
    chosen = "inductor" if read is None else read()
    return str(getattr(chosen, "__name__", chosen))


def without_compiler() -> AbstractContextManager[Any]:
    """Return a context in which compiled functions run eagerly.

    Until 2.5 nothing can say this; the compiled function that a learning curve calls computes integers.
    """
    set_stance = getattr(torch.compiler, "set_stance", None)  # since 2.6
    return nullcontext() if set_stance is None else set_stance("force_eager")


_CODES = {
    "out of memory": 2,
    "all CUDA-capable devices are busy or unavailable": 46,
    "CUDA-capable device(s) is/are busy or unavailable": 46,
    "no CUDA-capable device is detected": 100,
    "uncorrectable ECC error encountered": 214,
    "uncorrectable NVLink error detected during the execution": 220,
    "OS call failed or operation not supported on this OS": 304,
    "unspecified launch failure": 719,
    "system not yet initialized": 802,
    "system has unsupported display driver / cuda driver combination": 803,
    "unknown error": 999,
}
"""Until 2.7: the runtime's texts of the codes that the trainer tells apart."""


def device_error_code(error: BaseException) -> int | None:
    """Return the CUDA runtime error code of an exception, else `None`."""
    kind = getattr(torch, "AcceleratorError", None)  # since 2.8
    if kind is not None:
        return getattr(error, "error_code", None) if isinstance(error, kind) else None
    text, found = str(error).partition("\n")[0], isinstance(error, RuntimeError)
    return _CODES.get(text.removeprefix("CUDA error: ")) if found and text.startswith("CUDA error: ") else None
