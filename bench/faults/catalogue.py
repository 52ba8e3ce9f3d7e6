"""Catalogue of faults and controls, each declared where its injector is.

A fault has one cause that is expected of the judge; a control has none and must pass. The product knows none of them.
A new file of faults is one module of `injectors` and one line of `FILES`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

FILES = (
    "files", "inputs", "weights", "operators", "training", "evaluations", "combined",
    "attention", "kernels", "updates", "speed_inputs", "learning", "resumes", "learning_evaluation", "ranks",
    "throughput", "benign", "benign_production", "doors",
)  # fmt: skip
"""Modules of `bench.faults.injectors` with decorated injectors, or with `ROWS`, a tuple of entries."""

_CPU = Path("/proc/cpuinfo")
OTHER_ISA = {"ATEN_CPU_CAPABILITY": "avx2" if _CPU.is_file() and "avx512f" in _CPU.read_text() else "default"}
"""Kernels of another instruction set than this processor's newest."""
PLAIN = {"ATEN_CPU_CAPABILITY": "default"}
NOISE = {"NCCL_IB_TIMEOUT": "22", "KMP_BLOCKTIME": "0", "CUDA_HOME": "/opt/cuda"}
"""Variables that change no bit."""
_FAULTS = Path(__file__).resolve().parent
_SITE = f"{_FAULTS / 'site'}:{_FAULTS.parents[1]}"
Injector = Callable[..., None]


@dataclass(frozen=True)
class Entry:
    """One fault, or one control if `expected` is empty."""

    name: str
    family: str
    """The module that declares it."""
    expected: str
    """The cause, or two with ` + ` between them."""
    inject: str = ""
    """`module.function` below `bench.faults.injectors`, applied in the training process; several with commas."""
    alter: str = ""
    """The same, applied to a copy of the dataset."""
    workload: str = "cls"
    environment: dict[str, str] = field(default_factory=dict)
    setting: str = ""
    """What needs the runner's help: `cache`, `repeat`, `load`, `apart`, `two processes`, `two beside two`."""
    about: str = ""
    """What an entry without an injector changes."""

    @property
    def is_throughput(self) -> bool:
        """Return whether the entry is judged by the time that a training takes."""
        return self.workload == "speed"

    @property
    def words(self) -> str:
        """Return the description, from the injectors' docstrings."""
        names = [name for name in (self.alter, *self.inject.split(",")) if name]
        return " ".join((inspect.getdoc(function(name)) or "").split("\n")[0] for name in names) or self.about


def fault(
    expected: str,
    workload: str = "cls",
    environment: dict[str, str] | None = None,
    *,
    setting: str = "",
    name: str = "",
) -> Callable[[Injector], Injector]:
    """Declare the decorated injector as a fault with an expected cause; it may be repeated.

    An injector without parameters is applied in the training process. One with parameters
    `(content, read, seed)` alters a copy of the dataset. `environment` makes the machine a different one.
    """

    def declare(inject: Injector) -> Injector:
        family = inject.__module__.rpartition(".")[2]
        where = "alter" if inspect.signature(inject).parameters else "inject"
        keys: dict[str, Any] = {where: f"{family}.{inject.__name__}", "workload": workload, "setting": setting}
        title = name or inject.__name__.replace("_", "-")
        _DECLARED.setdefault(family, []).append(Entry(title, family, expected, environment=environment or {}, **keys))
        return inject

    return declare


def control(
    workload: str = "cls", environment: dict[str, str] | None = None, *, setting: str = "", name: str = ""
) -> Callable[[Injector], Injector]:
    """Declare the decorated injector as a harmless change."""
    return fault("", workload, environment, setting=setting, name=name)


def is_second() -> bool:
    """Return whether this is the second of two processes."""
    return os.environ.get("RANK") == "1"


def second_process(
    expected: str, workload: str, *, setting: str = "two processes", in_both: bool = False
) -> Callable[[Injector], Injector]:
    """Declare a fault of the second of two processes, by `sitecustomize`; `in_both` applies it in the first, too."""

    def declare(inject: Injector) -> Injector:
        def apply() -> None:
            if in_both or is_second():
                inject()

        apply.__name__, apply.__module__, apply.__doc__ = inject.__name__, inject.__module__, inject.__doc__
        path = f"{inject.__module__.rpartition('.')[2]}.{inject.__name__}"
        environment = {"PLUMBLINE_FAULT": path, "PYTHONPATH": _SITE}
        return fault(expected, workload, environment, setting=setting)(apply)

    return declare


_DECLARED: dict[str, list[Entry]] = {}


@cache
def entries() -> tuple[Entry, ...]:
    """Return all faults and controls, file by file."""
    found: list[Entry] = []
    for name in FILES:
        module = import_module(f"bench.faults.injectors.{name}")
        found += [*_DECLARED.get(name, []), *getattr(module, "ROWS", ())]
    return tuple(found)


def function(name: str) -> Injector:
    """Return the injector `module.function`."""
    module, _, attribute = name.rpartition(".")
    result: Injector = getattr(import_module(f"bench.faults.injectors.{module}"), attribute)
    return result


def inject(names: str) -> None:
    """Apply faults in the current process, with commas between their names."""
    import_module("bench.faults.injectors.patching").follow()
    for name in names.split(","):
        function(name)()
