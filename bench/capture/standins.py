"""Stand-ins for what a peer's program needs and this machine lacks; each program imports them in its first line.

Downloads become seeded random data of the same shapes, CUDA calls do nothing, and `capture` ends the program after its
steps. `PEER_MODE` is `bare` for a program without a record. `python -m bench.capture.standins` loads torch once, and
forks a child for each program that it is told in a JSON line.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import runpy
import sys
import tarfile
import traceback
import types
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

import plumbline
from plumbline.schema.digest import digest_json
from plumbline.train.digests import digest_tensors
from plumbline.train.numerics import digest_states, read_states

RECORD, START, STEPS = "", None, 0
_IMAGES = 1500
_WIRE = "PEER_RECORD"


class _Anything(types.ModuleType):
    """Module or object whose every attribute can be called, and gives itself."""

    def __getattr__(self, name: str) -> Any:
        return None if name.startswith("__") else self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self


class _Bare:
    """Recorder that records nothing."""

    def __init__(self, _folder: Any, _model: Any, _optimizer: Any = None, *, steps: int, **_: Any) -> None:
        self._steps = steps

    def __enter__(self) -> Self:
        return self

    def step(self, *_: Any) -> None:
        self._steps -= 1
        self.is_done = not self._steps


class capture:  # noqa: N801 - stands in for a function of that name
    """`plumbline.capture`, which ends the program after its steps, with the digest of all that was trained."""

    def __init__(self, folder: Any, model: Any, optimizer: Any = None, **given: Any) -> None:
        self._models = list(model.values()) if isinstance(model, dict) else [model]
        several = optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._optimizers = [each for each in several if each is not None]
        kind = _Bare if os.environ["PEER_MODE"] == "bare" else plumbline.capture
        self._inner = kind(folder, model, optimizer, **given)

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def step(self, *given: Any) -> None:
        """End a step, and after the last one the program."""
        self._inner.step(*given)
        if self._inner.is_done:
            found = [digest_tensors(dict(each.state_dict())) for each in self._models]
            for each in self._optimizers:
                states = list(each.state_dict()["state"].values())
                tensors = {f"{place}.{key}": value for place, entry in enumerate(states)
                           for key, value in entry.items() if isinstance(value, torch.Tensor)}  # fmt: skip
                found.append(digest_tensors(tensors))
            digest = digest_json([*found, digest_states(read_states())])
            Path(f"{os.environ['PEER_RECORD']}.digest{_rank()}").write_text(digest)
            sys.stdout.flush()
            os._exit(0)


def _rank() -> int:
    """Return the number of a process that `torch.multiprocessing.spawn` started, counted from 0."""
    return max(int("".join(filter(str.isdigit, multiprocessing.current_process().name)) or "1") - 1, 0)


def _same(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _cora(folder: Path) -> None:
    """Write a random graph in the format of the Cora files."""
    draw = np.random.default_rng(3)
    folder.mkdir(exist_ok=True)
    rows = [[str(node), *map(str, draw.integers(0, 2, 60)), f"kind{node % 5}"] for node in range(200)]
    (folder / "cora.content").write_text("\n".join("\t".join(row) for row in rows))
    edges = {tuple(sorted(map(int, draw.choice(200, 2, replace=False)))) for _ in range(400)}
    (folder / "cora.cites").write_text("\n".join(f"{one}\t{other}" for one, other in sorted(edges)))


class _Answer:
    """Download of the graph as an archive."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.raw = io.BytesIO()
        with tarfile.open(fileobj=self.raw, mode="w:gz") as archive:
            archive.add("cora")
        self.raw.seek(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _text(folder: Path) -> None:
    draw = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        lines = [" ".join(f"word{word}" for word in draw.integers(0, 300, 40)) for _ in range(400)]
        (folder / f"{name}.txt").write_text("\n".join(lines))


def _images() -> None:
    """Let torchvision's data sets be random images; its compiled operators are of another build of torch."""
    sys.modules["torchvision._meta_registrations"] = types.ModuleType("_meta_registrations")
    import torchvision.models  # noqa: F401 - what a program would import in each child
    from PIL import Image
    from torchvision import datasets

    class Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
        shape: tuple[int, ...] = (28, 28)

        def __init__(self, *_: Any, transform: Any = None, train: bool = True, **__: Any) -> None:
            draw = np.random.default_rng(5 + train)
            self.data = torch.from_numpy(draw.integers(0, 256, (_IMAGES, *self.shape), dtype=np.uint8))
            self.targets = torch.from_numpy(draw.integers(0, 10, _IMAGES))
            self._transform = transform or _same

        def __len__(self) -> int:
            return _IMAGES

        def __getitem__(self, place: int) -> Any:
            return self._transform(Image.fromarray(self.data[place].numpy())), int(self.targets[place])

    class Fake(Images):
        def __init__(
            self,
            _size: int = 1000,
            image_size: tuple[int, ...] = (3, 224, 224),
            _classes: int = 10,
            transform: Any = None,
            **_: Any,
        ) -> None:
            self.shape = (*image_size[1:], image_size[0])
            super().__init__(transform=transform)

    datasets.FakeData = Fake
    colour = type("Images", (Images,), {"shape": (32, 32, 3)})
    for name, kind in {"MNIST": Images, "CIFAR10": colour, "CIFAR100": colour}.items():
        setattr(datasets, name, kind)

    class EfficientNet(nn.Module):
        """The names of efficientnet_pytorch's parts: batch norms are `_bn`, the head is `_fc`."""

        def __init__(self) -> None:
            super().__init__()
            self._conv_stem, self._bn0 = nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16)
            self._conv_head, self._bn1 = nn.Conv2d(16, 32, 3, 2), nn.BatchNorm2d(32)
            self._fc = nn.Linear(32, 10)

        from_pretrained = classmethod(lambda cls, _name: cls())

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            hidden = self._bn1(self._conv_head(torch.relu(self._bn0(self._conv_stem(images))))).relu()
            return self._fc(hidden.mean((2, 3)))

    sys.modules["efficientnet_pytorch"] = types.ModuleType("efficientnet_pytorch")
    sys.modules["efficientnet_pytorch"].EfficientNet = EfficientNet  # type: ignore[attr-defined]


def _replace() -> None:
    """Replace modules and CUDA calls, once a process."""
    names = ("traincheck", "traincheck.instrumentor", "traincheck.instrumentor.tracer", "requests")
    sys.modules |= {name: _Anything(name) for name in (*names, "matplotlib", "matplotlib.pyplot")}
    sys.modules["traincheck.instrumentor"].meta_vars = {}  # type: ignore[attr-defined]
    sys.modules["requests"].get = _Answer  # type: ignore[attr-defined]
    import gymnasium

    sys.modules["gym"] = gymnasium
    for kind in (torch.Tensor, nn.Module):
        kind.cuda = lambda self, *_, **__: self  # type: ignore[assignment, method-assign]
    calls = ("empty_cache", "reset_max_memory_allocated", "synchronize", "set_device", "max_memory_allocated")
    for name, value in (dict.fromkeys(calls, 0) | {"device_count": 2}).items():
        setattr(torch.cuda, name, lambda *_, value=value: value)
    torch.cuda.amp.GradScaler = lambda **given: torch.amp.GradScaler("cpu", **given)  # type: ignore[assignment, misc]
    np.Inf = np.inf  # type: ignore[attr-defined]  # noqa: NPY201
    _images()


def _begin() -> None:
    """Read what this program is told, write its data, and seed all generators, each process with its own number."""
    global RECORD, START, STEPS  # noqa: PLW0603 - what a program imports by name
    RECORD, START = os.environ[_WIRE], os.environ.get("PEER_START") or None
    STEPS = int(os.environ["PEER_STEPS"])
    if not Path("cora").exists():
        _cora(Path("cora"))
        _text(Path("data/wikitext-2"))
        Path("results").mkdir(exist_ok=True)
        waves = np.sin(np.arange(24) / 5 + np.random.default_rng(3).integers(0, 99, (12, 1)))
        torch.save(waves, "traindata.pt")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(3 + _rank())


def _child(job: dict[str, Any]) -> None:
    os.chdir(job["folder"])
    os.environ.update(job["environment"])
    sys.path.insert(0, job["folder"])
    sys.argv = job["command"]
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _begin()
    runpy.run_path(sys.argv[0], run_name="__main__")


def serve() -> None:
    """Fork a child for each job, and answer with its exit code."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                _child(json.loads(line))
            except BaseException:  # noqa: BLE001 - a child never returns into the server's loop
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


_replace()
if _WIRE in os.environ:  # a process that a program started
    _begin()
