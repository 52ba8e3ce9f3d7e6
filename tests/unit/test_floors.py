"""The floors in pyproject.toml hold: an import that climbs, planted in a copy of the tree, fails `lint-imports`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Tree:
    """A copy of the product, in which files are planted for one run of `lint-imports`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("plumbline", "flows", "tasks"):
            shutil.copytree(
                ROOT / folder, root / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.toml")
            )
        shutil.copy(ROOT / "pyproject.toml", root)

    @contextmanager
    def planted(self, place: str, line: str) -> Iterator[None]:
        """Append a line to a file, or make the file; take it away at the end."""
        path = self.root / place
        before = path.read_text(encoding="utf-8") if path.exists() else None
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{before or ''}\n{line}\n", encoding="utf-8")
        try:
            yield
        finally:
            if before is None:
                shutil.rmtree(path.parent)
            else:
                path.write_text(before, encoding="utf-8")

    def broken(self) -> list[str]:
        """Return the names of the contracts that `lint-imports` finds broken."""
        command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False, timeout=120)
        assert "Contracts: " in done.stdout, done.stdout + done.stderr
        broken = [line.partition(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line]
        assert done.returncode == bool(broken), done.stdout + done.stderr
        return broken


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("house"))


def test_the_tree_as_it_is_keeps_every_contract(tree: Tree) -> None:
    assert tree.broken() == []


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("place", "line", "contract"),
    [
        ("schema/fact.py", "import plumbline.night.rounds.plan", "floors of the wings"),
        ("data/stores/retry.py", "import plumbline.night.rounds.plan", "floors of the wings"),
        ("report/view.py", "def late():\n    import plumbline.upgrade.answer", "floors of the wings"),
        ("train/context.py", "import plumbline.judge.pair", "floors of the wings"),
        ("judge/pair.py", "import plumbline.judge.confirm", "floors of the judge"),
        ("train/engine.py", "import plumbline.train.probe", "floors of the trainer"),
        ("night/central/outbox.py", "import plumbline.night.rounds.nights", "floors of the night"),
        ("judge/walk.py", "import plumbline.data.stores", "deciding code does no I/O of its own"),
        ("data/datasets/build.py", "import torch", "torch and transformers only in the trainer"),
        ("night/baseline.py", "from prefect import flow", "no Prefect in the core"),
        ("train/watch/taps.py", "import plumbline.train.proof.steps", "floors of the trainer"),
        ("train/watch/recorder.py", "import plumbline.train.watch.taps", "no circles"),
        ("judge/experiments.py", "import plumbline.judge.confirm", "no circles"),
        ("schema/base.py", "import plumbline.schema.suite", "no circles"),
        ("data/stores/retry.py", "import plumbline.data.staging.stager", "no circles"),
        ("judge/curves.py", "if TYPE_CHECKING:\n    import plumbline.judge.confirm", "no circles"),
    ],
)
def test_an_import_that_climbs_or_closes_a_circle_breaks_its_contract(
    tree: Tree, place: str, line: str, contract: str
) -> None:
    with tree.planted(f"plumbline/{place}", line):
        assert contract in tree.broken()


def test_a_wing_without_a_floor_is_refused(tree: Tree) -> None:
    with tree.planted("plumbline/cellar/__init__.py", "import plumbline.schema.errors"):
        assert tree.broken() == ["floors of the wings"]
