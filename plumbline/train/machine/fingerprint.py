"""Fingerprint of the training machine: hardware, software and settings."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from plumbline.schema.base import Scalar
from plumbline.schema.digest import digest_lock
from plumbline.schema.evidence import NativeOperation
from plumbline.schema.fingerprint import Cpu, Fingerprint, Gpu
from plumbline.schema.variables import variable
from plumbline.train.machine.sampler import allowed_cores
from plumbline.train.ranks import Ranks

_VARIABLES = re.compile(
    r"^(CUBLAS|CUDA|CUDNN|NVIDIA|NCCL|GLOO|OMP|MKL|KMP|GOMP|OPENBLAS|TORCH(?!ELASTIC)|PYTORCH|ATEN|TOKENIZERS|HF_HUB_OFFLINE"
    r"|TRANSFORMERS_OFFLINE|TRITON|XLA|ONEDNN|DNNL|LD_PRELOAD|LD_LIBRARY_PATH|MALLOC|PYTHON[A-Z]"
    r"|LC_ALL|LANG|TZ)"
)
_SECRET = re.compile(r"(?i)(token(?!izers)|secret|passw|credential|key$|_key_|signature)")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    if sys.platform == "darwin":  # where Python names the architecture alone, of every machine the same
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return platform.processor() or platform.machine()


@functools.cache
def _gpus() -> tuple[Gpu, ...]:
    gpus = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(index)
        bus = [getattr(about, f"pci_{name}_id", None) for name in ("domain", "bus", "device")]
        gpus.append(
            Gpu(
                name=about.name,
                uuid=str(getattr(about, "uuid", "")),
                memory_bytes=about.total_memory,
                num_sms=about.multi_processor_count,
                compute_capability=f"{about.major}.{about.minor}",
                pci=":".join(f"{part:02x}" for part in bus if part is not None),
            )
        )
    return tuple(gpus)


def _driver() -> str:
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return ""
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", first)
    return match.group(1) if match else ""


def _packages() -> dict[str, str]:
    packages: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        metadata = distribution.metadata  # each access reads the file
        name = metadata["Name"]
        if name:
            packages.setdefault(name.lower().replace("_", "-"), metadata["Version"])
    return dict(sorted(packages.items()))


@functools.cache
def _topology(ranks: Ranks) -> dict[str, str]:
    if ranks.world == 1:
        return {}
    import torch.distributed as dist

    topology = {"backend": str(dist.get_backend()), "processes": str(ranks.world)}
    if (on_each := int(variable("LOCAL_WORLD_SIZE", str(ranks.world)))) < ranks.world:
        topology["nodes"] = str(ranks.world // on_each)
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_NET"):
        if dist.get_backend() == "nccl":
            topology[name] = variable(name, "unset")
    if ranks.device.type == "cuda":
        peers = range(torch.cuda.device_count())
        topology["peer_access"] = ",".join(
            f"{a}-{b}" for a in peers for b in peers if a < b and torch.cuda.can_device_access_peer(a, b)
        )
    return topology


def _lock_sha256() -> str:
    path = variable("PLUMBLINE_LOCK")
    return digest_lock(Path(path)) if path and Path(path).is_file() else ""


def _nccl() -> str:
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return ""
    return ".".join(map(str, torch.cuda.nccl.version()))


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that may affect training.

    A worker gives every run a folder of its own, in PYTHONPATH too, and torchrun gives every launch an identity of its
    own (TORCHELASTIC): they would differ in every record.
    """
    chosen = {
        name: _without_temporary(value)
        for name, value in sorted(environment.items())
        if _VARIABLES.match(name) and not _SECRET.search(name)
    }
    return {name: value for name, value in chosen.items() if value or not environment[name]}


def _without_temporary(value: str) -> str:
    """Remove temporary folders from a list of paths."""
    folders = {Path(tempfile.gettempdir()), Path(tempfile.gettempdir()).resolve()}
    entries = value.split(os.pathsep)
    kept = [entry for entry in entries if folders.isdisjoint((Path(entry), *Path(entry).parents))]
    return value if len(kept) == len(entries) else os.pathsep.join(kept)


def ask_devices(ranks: Ranks) -> None:
    """Cache each GPU's description, as a failed GPU cannot be queried."""
    _gpus()
    _topology(ranks)


def read_fingerprint(
    ranks: Ranks, numerics: dict[str, Scalar], mantissa_bits: dict[str, int],
    operations: Mapping[str, tuple[NativeOperation, ...]] | None = None,
) -> Fingerprint:  # fmt: skip
    """Return the fingerprint of this run."""
    from plumbline import __version__

    return Fingerprint(
        hostname=socket.gethostname(),
        os=platform.platform(),
        python=platform.python_version(),
        plumbline=__version__,
        cpu=Cpu(
            model=_cpu_model(),
            isa=torch.backends.cpu.get_cpu_capability(),
            num_cores=len(allowed_cores()),
            num_threads=torch.get_num_threads(),
        ),
        gpus=_gpus(),
        driver=_driver(),
        cuda=torch.version.cuda or "",
        cudnn=str(torch.backends.cudnn.version() or "") if torch.cuda.is_available() else "",
        nccl=_nccl(),
        num_processes=ranks.world,
        topology=_topology(ranks),
        packages=_packages(),
        numerics=numerics,
        mantissa_bits=mantissa_bits,
        operations=dict(operations or {}),
        environment=recorded_variables(os.environ),
        container_image=variable("PLUMBLINE_IMAGE"),
        lock_sha256=_lock_sha256(),
    )
