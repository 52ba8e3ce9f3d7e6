"""The engine (`terraform` or `tofu`) on the modules, with stub providers: apply, second plan, destroy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from providers import Case, serve
from schemas import read_schemas, used_types

PROGRAM = next((name for name in ("terraform", "tofu") if shutil.which(name)), "")
"""The engine of this machine; empty without one."""
_BACKEND = 'terraform {\n  backend "local" {}\n}\n'
_OPTIONS = ("-no-color", "-input=false")


@dataclass(frozen=True)
class Resource:
    """One applied resource, with the value of each attribute."""

    address: str
    type: str
    value: dict[str, Any]
    needs: frozenset[str]
    """Addresses, without indices, of everything that exists before it and goes after it."""


@dataclass(frozen=True)
class Applied:
    """State after an apply."""

    resources: tuple[Resource, ...] = ()
    outputs: dict[str, Any] = field(default_factory=dict)
    providers: dict[str, Any] = field(default_factory=dict)
    """Each provider's configuration."""
    values: dict[str, Any] = field(default_factory=dict)
    """The module's variables, as far as they were given."""

    def of(self, type_: str, name: str = "") -> list[Resource]:
        """Return the resources of a type, and of a part of an address."""
        return [one for one in self.resources if one.type == type_ and name in one.address]


class Engine:
    """The engine in one environment, whose stub providers answer as the case wants."""

    def __init__(self, environment: Mapping[str, str], case: Case, versions: Mapping[str, str]) -> None:
        self.case, self.versions = case, versions
        self._environment = {**os.environ, **environment, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}

    @contextmanager
    def folder(self, root: Path, module: str = "three-clouds") -> Iterator[Path]:
        """Yield a copy of the module, in which the engine is initialized and the state is a file."""
        with tempfile.TemporaryDirectory() as place:
            copy = Path(place) / "infra"
            shutil.copytree(root / "infra", copy, ignore=shutil.ignore_patterns("node_modules", "local", "check"))
            if module == "three-clouds":
                (copy / module / "backend_override.tf").write_text(_BACKEND, "utf-8")
            self.run(copy / module, "init")
            yield copy / module

    def run(self, folder: Path, command: str, *options: str) -> str:
        """Run one command; return what it prints. Raises `EngineError`."""
        done = subprocess.run(
            [PROGRAM, command, *_OPTIONS[: 1 if command in ("validate", "fmt") else 2], *options], cwd=folder,
            env=self._environment, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        if done.returncode:
            raise EngineError(f"{PROGRAM} {command}: {_shortened(done.stdout + done.stderr)}")
        return done.stdout

    def apply(self, folder: Path, values: Mapping[str, Any]) -> Applied:
        """Apply the module with these values; return the state."""
        (folder / "terraform.tfvars.json").write_text(json.dumps(values), "utf-8")
        self.run(folder, "apply", "-auto-approve")
        state = json.loads((folder / "terraform.tfstate").read_text("utf-8"))
        outputs = {name: output["value"] for name, output in state["outputs"].items()}
        return Applied(tuple(_resources(state)), outputs, dict(self.case.configured), dict(values))

    def plan_again(self, folder: Path) -> None:
        """Plan after an apply. Raises `EngineError` if a second apply would change something."""
        said = self.run(folder, "plan")
        if "No changes" not in said:
            raise EngineError(f"second plan: {_shortened(said)}")

    def destroy(self, folder: Path) -> None:
        """Destroy everything. Raises `EngineError` if something is left."""
        self.run(folder, "destroy", "-auto-approve")
        if left := json.loads((folder / "terraform.tfstate").read_text("utf-8"))["resources"]:
            raise EngineError(f"destroy: {left[0]['type']}.{left[0]['name']} is left")


class EngineError(Exception):
    """What the engine says of a fault."""


@contextmanager
def open_engine(root: Path, wheels: Path) -> Iterator[Engine]:
    """Yield the engine with the providers of the types that the modules use."""
    schemas, case = read_schemas(wheels, used_types(root)), Case()
    with serve(schemas, case) as environment:
        yield Engine(environment, case, {name: schema["version"] for name, schema in schemas.items()})


def _resources(state: dict[str, Any]) -> Iterator[Resource]:
    for group in state["resources"]:
        if group["mode"] != "managed":
            continue
        # Counted modules are one: module.aws[0] is module.aws.
        base = ".".join(filter(None, (group.get("module", ""), group["type"], group["name"])))
        for instance in group["instances"]:
            key = instance.get("index_key")
            address = re.sub(r"\[0\]", "", base) + ("" if key is None else f"[{json.dumps(key)}]")
            needs = frozenset(instance.get("dependencies", ()))
            yield Resource(address, group["type"], instance["attributes"], needs)


def _shortened(text: str) -> str:
    said = re.sub(r"[╷│╵]", "", text)
    return " ".join((said[said.index("Error:") :] if "Error:" in said else said[-1000:]).split())[:1000]
