"""The controller runs with no torch installed, and the trainer with no Prefect.

Each environment is imitated by an interpreter in which the other's packages cannot be imported at all.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

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
        pytest.param(("torch", "transformers"), ("plumbline", "tasks", "flows"), ("plumbline.train",), id="controller"),
        pytest.param(("prefect", "boto3", "azure"), ("plumbline",), ("plumbline.report",), id="trainer"),
    ],
)
def test_every_module_of_an_environment_loads_without_the_other_ones_packages(blocked, roots, spared):
    done = imported_without(blocked, roots, spared)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("imported")
