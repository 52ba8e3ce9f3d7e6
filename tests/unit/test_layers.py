"""The controller runs without torch, and the trainer without Prefect.

Each environment is imitated by an interpreter in which the other's packages cannot be imported at all.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTED = {
    "prefect", "prefect.artifacts", "prefect.blocks.abstract", "prefect.blocks.core", "prefect.blocks.notifications",
    "prefect.client.orchestration", "prefect.client.schemas.actions", "prefect.client.schemas.filters",
    "prefect.client.schemas.objects", "prefect.client.schemas.responses", "prefect.client.schemas.schedules",
    "prefect.client.schemas.sorting", "prefect.deployments", "prefect.events", "prefect.events.actions",
    "prefect.events.schemas.automations", "prefect.events.schemas.events", "prefect.exceptions",
    "prefect.logging.loggers", "prefect.runtime",
    "prefect.settings", "prefect.states", "prefect.utilities.annotations", "prefect.utilities.callables",
    "prefect.utilities.urls",
}  # fmt: skip
"""The modules of Prefect's Python SDK reference that the product uses."""
PRIVATE = ("docket", "uvicorn", "starlette", "fastapi", "sqlalchemy")
"""Libraries of Prefect's server, which is a stock process to us."""

BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked: this environment has none")
sys.meta_path.insert(0, Block())
import importlib, pkgutil
for root in {roots!r}:
    package = importlib.import_module(root)
    for module in pkgutil.walk_packages(package.__path__, root + "."):
        if not module.name.startswith({spared!r}) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
assert not set(sys.modules) & set({blocked!r})
print("imported", len([name for name in sys.modules if name.split(".")[0] in {roots!r}]))
"""


def imported_without(blocked, roots, spared):
    code = BLOCK.format(blocked=blocked, roots=roots, spared=spared)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("blocked", "roots", "spared"),
    [
        pytest.param(("torch", "transformers"), ("plumbline",), ("plumbline.train",), id="controller"),
        pytest.param(
            ("prefect", "boto3", "botocore", "azure"),
            ("plumbline",),
            ("plumbline.report", "plumbline.flows", "plumbline.tasks"),
            id="trainer",
            marks=pytest.mark.long,
        ),
    ],
)
def test_every_module_of_an_environment_loads_without_the_other_ones_packages(blocked, roots, spared):
    done = imported_without(blocked, roots, spared)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("imported")


@functools.cache
def imports_of(path: Path) -> set[str]:
    result = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            private = [alias.name for alias in node.names if alias.name.startswith("_")]
            result |= {node.module, *(f"{node.module}.{name}" for name in private)}
    return result


def test_the_product_imports_documented_modules_of_prefect_alone():
    files = [path for folder in ("plumbline", "flows", "tasks") for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 100
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports_of(path)
        if (name.split(".")[0] == "prefect" and name not in DOCUMENTED) or name.split(".")[0] in PRIVATE
    }
    assert not wrong


def test_no_file_imports_a_private_name_of_the_product() -> None:
    folders = ("plumbline", "flows", "tasks", "tests", "bench", "drills")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(files) > 500
    private = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in files
        for name in imports_of(path)
        if name.startswith("plumbline.") and name.rpartition(".")[2].startswith("_") and not name.endswith("__")
    }
    assert not private, "make it public, or test what its module exports"
