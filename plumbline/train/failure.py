"""Errors that end a training, and recognition of machine failures in exceptions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError

from plumbline.schema.errors import DISK_FULL, WRONG_PATH, DiskFullError, TrainingError, UnavailableError
from plumbline.train.compat.torch import device_error_code

OUT_OF_MEMORY = "out-of-memory"
MODULE_ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError, NotImplementedError)
"""Errors of a module's own code where it does not compute in fp64; a check or proof never ends a training."""

_CUDA_OUT_OF_MEMORY = 2
_DEVICE_LOST = frozenset({
    46,  # devices busy or unavailable
    100,  # no device
    214, 220, 226,  # uncorrectable error of memory or NVLink, contained error
    304,  # a call of the operating system failed
    719,  # launch failure without a reason
    802, 803,  # system not ready, driver mismatch
    805, 806, 807, 808, 809, 810,  # the multi-process service
    999,  # unknown
})  # fmt: skip
"""CUDA's runtime error codes of a device, driver or service that failed.

Codes of a program's own fault are not among them: an illegal address (700), a failed assertion (710) or an illegal
instruction (715) happens again with the same kernel, and stays an error of the training. A launch failure (719) may be
either: a driver reports it after most faults of the hardware. A retry tells them apart, and a kernel that always fails
so leaves the platform inconclusive on every round, with this error.
"""
_OUT_OF_MEMORY_TEXTS = ("DefaultCPUAllocator: can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
_OUT_OF_THREADS_TEXT = "can't start new thread"


class TrainingFailedError(TrainingError):
    """Error that ends a training and is written to its record.

    `code` is one of `non-finite`, `out-of-memory`, `labels`, `weights`, `tokenizer`, `data`, `device`, `setting`,
    and `error` (any other exception).
    """

    def __init__(
        self, what: str, *, code: str, part: str = "", step: int | None = None, where: str = "", key: str = "",
        hint: str = "",
    ) -> None:  # fmt: skip
        place = where or " ".join(filter(None, (part, "" if step is None else f"step {step}")))
        super().__init__(what, where=place, key=key, hint=hint)
        self.code, self.part, self.step = code, part, step


class PeerLostError(UnavailableError):
    """Lost connection to another process of the training."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield `error` and its chained causes.

    A wrong path that was only being handled when the next error occurred is not among them: a missing file is a usual
    branch of a program, a full disk is not.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    is_explicit = True
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if is_explicit or not isinstance(current, OSError) or current.errno not in {None, *WRONG_PATH}:
            yield current
        # torch's compilers keep the cause in an attribute, and raise `from None`.
        explicit = getattr(current, "inner_exception", None) or current.__cause__
        is_explicit = explicit is not None
        current = explicit or (None if current.__suppress_context__ else current.__context__)


def described(error: BaseException, most: int = 160) -> str:
    """Return an error's class and first line, in `most` characters."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:most]


def is_of_system(error: BaseException) -> bool:
    """Return whether the operating system failed, as opposed to invalid file contents.

    pyarrow reports corrupt contents as a plain `OSError` without an `errno`, safetensors a file that it cannot open as
    `FileNotFoundError` without an `errno`.
    """
    return isinstance(error, OSError) and (error.errno is not None or type(error) is not OSError)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether a memory allocation failed, on host or device.

    For the host's memory and for cuBLAS torch raises a plain `RuntimeError`: only the text tells.
    """
    if isinstance(error, TrainingFailedError):
        return error.code == OUT_OF_MEMORY
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or device_error_code(error) == _CUDA_OUT_OF_MEMORY:
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY_TEXTS)


def is_out_of_threads(error: BaseException) -> bool:
    """Return whether starting a thread failed, judged by the error's text."""
    return isinstance(error, RuntimeError) and str(error) == _OUT_OF_THREADS_TEXT


def is_device_lost(error: BaseException) -> bool:
    """Return whether a device or its driver failed."""
    return device_error_code(error) in _DEVICE_LOST


def pending_device_error(device: torch.device) -> RuntimeError | None:
    """Return a device's pending asynchronous error, without waiting for the device.

    The first call after a fault may be a library's, such as cuBLAS, whose own error does not have the device's code.
    """
    if device.type != "cuda":
        return None
    try:
        torch.cuda.current_stream(device).query()
    except RuntimeError as error:
        return error
    return None


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert write errors in `folder` to `DiskFullError` or `UnavailableError`."""
    try:
        yield
    except OSError as error:
        kind = DiskFullError if error.errno in DISK_FULL else UnavailableError
        raise kind(f"cannot be written: {error.strerror}", where=str(folder)) from error
    except SafetensorError as error:
        # The error has no errno; a full disk is the only reason for a failed tensor write.
        raise DiskFullError(f"cannot be written: {error}", where=str(folder)) from error
