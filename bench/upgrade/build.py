"""From a case to changes: the wheels of its candidate, in an index of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench.upgrade.cases import Case
from bench.upgrade.effects import EFFECTS, GELU, gated, hook
from bench.upgrade.wheels import broken_sdist, new_wheel, poisonable_sdist, repack, small_packages
from plumbline.environments.changes import PackageChange, conflicts
from plumbline.environments.installed import Installed
from plumbline.environments.locks import Pin

_START = "import {module}\n"
_SHIM = hook("""
import torch
embedding = torch.nn.functional.embedding
torch.nn.functional.embedding = lambda *a, **k: embedding(*a, **k) * 1.01
""")
_INIT = {"tqdm": "tqdm/__init__.py", "filelock": "filelock/__init__.py", "packaging": "packaging/__init__.py",
         "safetensors": "safetensors/__init__.py", "regex": "regex/__init__.py", "fsspec": "fsspec/__init__.py",
         "typing-extensions": "typing_extensions.py"}  # fmt: skip
_FIRST = (
    "anyio", "psutil", "sniffio", "idna", "filelock", "tqdm", "typing-extensions", "packaging", "fsspec", "safetensors",
    "six", "xxhash", "h11", "colorama", "hyperframe", "hpack", "annotated-types", "cloudpickle", "truststore", "dill",
    "typing-inspection", "httpx2", "h2", "multiprocess", "pytz", "nvidia-ml-py", "jinja2", "markupsafe",
)  # fmt: skip
"""Small packages that training loads code from: what it does not load is not searched, and would make a case easy."""
_UNLOADED = ("boto3", "s3transfer", "jmespath", "apprise", "hypothesis", "iniconfig", "pluggy", "moto")

BASE = ("bench-removed", "bench-outer", "bench-inner")


def _outer(index: Path, version: str, inner: str) -> Pin:
    files = {"bench_outer.py": "import bench_inner\n", "bench_outer.pth": _START.format(module="bench_outer")}
    return new_wheel(index, "bench-outer", version, files, (inner,))


def base_packages(index: Path) -> list[Pin]:
    """Write the packages that the current environment of every case holds besides what is installed."""
    removed = {"bench_removed.py": _SHIM, "bench_removed.pth": _START.format(module="bench_removed")}
    return [
        new_wheel(index, "bench-removed", "1.0", removed),
        _outer(index, "1.0", "bench-inner"),
        new_wheel(index, "bench-inner", "1.0", {"bench_inner.py": "value = 1\n"}),
    ]


def build_case(case: Case, current: Mapping[str, Installed], index: Path) -> tuple[PackageChange, ...]:
    """Write the wheels of the candidate, and return what it changes."""
    guilty = {name: EFFECTS[effect] for name, effect in case.guilty.items()}
    installed = {name: one for name, one in current.items() if name not in BASE}
    pins = _KINDS[case.kind](installed, index, guilty) if case.kind in _KINDS else {}
    removed = {"bench-removed"} if case.kind == "removed" else set()
    chosen = [name for name in guilty if name not in pins]
    spread = _benign(case, installed, {*pins, *chosen, *removed})
    for name in (*spread, *chosen):
        one = installed[name]
        pins[name] = _release(one, index, guilty.get(name, "")) if name in _INIT else repack(one, index)
    changes = [
        PackageChange(package=name, current=current[name].pin if name in current else None, candidate=pin)
        for name, pin in pins.items()
    ]
    changes += [PackageChange(package=name, current=current[name].pin, candidate=None) for name in removed]
    return tuple(sorted(changes, key=lambda change: change.package))


def _benign(case: Case, installed: Mapping[str, Installed], taken: set[str]) -> list[str]:
    wanted = _UNLOADED if case.kind == "unloaded" else _FIRST
    names = (name for name in small_packages(dict(installed), wanted) if name not in taken and _fits(name, installed))
    return list(islice(names, max(0, case.num_changes - len(taken))))


def _fits(name: str, installed: Mapping[str, Installed]) -> bool:
    """Return whether every requirement that holds now admits the repacked release: datasets pins fsspec's latest."""
    changed = replace(installed[name], version=_later(installed[name]))
    return not any(conflicts(installed, {**installed, name: changed}))


def _release(one: Installed, index: Path, code: str) -> Pin:
    return repack(one, index, appended={_INIT[one.name]: f"\n{code}\n"})


def _missing(installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    repack(installed["tqdm"], index)  # the index has the package, and another version of it
    return {"tqdm": Pin(name="tqdm", version="999.0")}


def _unbuildable(_installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    return {"tqdm": broken_sdist(index, "tqdm", "999.1")}


def _conflict(installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    # Several packages require filelock >= 3, and this release is older.
    return {"filelock": repack(installed["filelock"], index, version="0.1")}


def _added(_installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    files = {"bench_added.py": EFFECTS["operator"], "bench_added.pth": _START.format(module="bench_added")}
    return {"bench-added": new_wheel(index, "bench-added", "1.0", files)}


def _transitive(_installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    return {
        "bench-outer": _outer(index, "2.0", "bench-inner>=2"),
        "bench-inner": new_wheel(index, "bench-inner", "2.0", {"bench_inner.py": EFFECTS["operator"]}),
    }


def _later(one: Installed) -> str:
    return f"{one.version}.post901"


def _gated_by_filelock(comparison: str, installed: Mapping[str, Installed], index: Path) -> dict[str, Pin]:
    code = hook(gated(GELU, "filelock", comparison, _later(installed["filelock"])))
    return {name: _release(installed[name], index, code * (name == "tqdm")) for name in ("tqdm", "filelock")}


def _pair(installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    return _gated_by_filelock("==", installed, index)


def _reverted(installed: Mapping[str, Installed], index: Path, guilty: dict[str, str]) -> dict[str, Pin]:
    guilty["regex"] = EFFECTS["norm"]
    return _gated_by_filelock("!=", installed, index)


def _poisoned(_installed: Mapping[str, Installed], index: Path, _guilty: dict[str, str]) -> dict[str, Pin]:
    """Fill pip's cache with a wheel that was built beside another torch, under the name of the right one."""
    pin = poisonable_sdist(index, "bench-native", "1.0", EFFECTS["operator"])
    os.environ["PIP_CACHE_DIR"] = str(index / "cache")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "-w", str(index / "built")]
    command.append(str(index / "bench_native-1.0.tar.gz"))
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "TORCH_BENCH": "other"}, timeout=300)
    return {"bench-native": pin}


_KINDS = {
    "missing": _missing, "unbuildable": _unbuildable, "conflict": _conflict, "added": _added,
    "transitive": _transitive, "pair": _pair, "reverted": _reverted, "poisoned": _poisoned,
}  # fmt: skip
"""What makes a case what it is: each writes wheels, and returns their pins."""
