"""The built wheel works in an environment that has no checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from plumbline.data.datasets import build_dataset, publish, read_manifest
from plumbline.data.stores import open_store
from plumbline.schema.suite import DatasetSource, read_suite
from tests.own_wheel import build_wheel, environment, packages
from tests.unit.infra.documented_commands import ROOT

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """Return an environment with the wheel, and with this environment's packages."""
    folder = environment(tmp_path_factory.mktemp("installed"), wheel)
    here = [path for path in sys.path if path.endswith("site-packages")]
    (packages(folder) / "packages.pth").write_text("\n".join(here) + "\n", encoding="utf-8")
    return folder


def call(installed: Path, folder: Path, *command: str) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(installed / "bin" / command[0]), *command[1:]],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_installs_one_package_and_its_command(installed: Path, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert call(installed, tmp_path, "plumbline", "--version") == f"plumbline {version}\n"
    assert "the suite file" in call(installed, tmp_path, "plumbline", "run", "--help")
    folder = packages(installed)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir() and "dist-info" not in path.name) == [
        "plumbline"
    ]
    (top_level,) = folder.glob("*.dist-info/top_level.txt")
    assert top_level.read_text() == "plumbline\n"


def test_the_wheel_s_suites_need_nothing_of_a_checkout(installed: Path, tmp_path: Path) -> None:
    shared = installed / "share" / "plumbline" / "deployments" / "suites"
    suites = {path.name: read_suite(path) for path in shared.glob("*.toml")}
    assert suites.keys() == {path.name for path in (ROOT / "deployments" / "suites").glob("*.toml")}
    source = DatasetSource(grammar_seed=1, train_rows=200, evaluation_rows=20, rows_per_shard=50, lowercase=False)
    build_dataset(source, "reviews", "sequence-classification", tmp_path / "built")
    publish(tmp_path / "built", open_store(f"file://{tmp_path}/data"), "reviews")
    commands = [setting.prepare for suite in suites.values() for setting in suite.local.values() if setting.prepare]
    assert commands
    for command in commands:
        filled = [word.replace("{python}", "python").replace("{data}", f"file://{tmp_path}/data") for word in command]
        assert not any("{" in word for word in filled)
        call(installed, tmp_path, *filled)
    before, after = read_manifest(tmp_path / "built"), read_manifest(tmp_path / "data" / "reviews")
    assert (before.evaluation, before.tokenizer) == (after.evaluation, after.tokenizer)
    assert before.train != after.train


def test_the_wheel_without_extras_lists_the_commands_that_it_can_run(tmp_path: Path, wheel: Path) -> None:
    installed = environment(tmp_path / "core", wheel)
    core = ["numpy", "pyarrow", "pydantic", "pydantic-core", "safetensors"]
    for name in [*core, "annotated-types", "typing-extensions", "typing-inspection"]:
        for top in {file.parts[0] for file in metadata.files(name) or []} - {".."}:
            link = packages(installed) / top
            if not link.exists():
                link.symlink_to(Path(metadata.distribution(name).locate_file(top)))
    assert call(installed, tmp_path, "plumbline", "--version").startswith("plumbline ")
    shown = call(installed, tmp_path, "plumbline", "--help")
    commands = set(re.findall(r"^    ([a-z]+) ", shown, re.MULTILINE))
    assert "compare" in commands
    assert not commands & {"run", "deploy"}
    # pre-commit installs the package without extras, and calls the entry with the team's arguments.
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
    rows = (ROOT / "examples" / "speed.csv").read_text("utf-8").splitlines()
    (tmp_path / "speed.csv").write_text("\n".join(rows[:25]) + "\n", encoding="utf-8")
    assert "pass (judged without reruns" in call(installed, tmp_path, *hook["entry"].split(), "speed.csv")
