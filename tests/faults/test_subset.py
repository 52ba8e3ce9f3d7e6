"""Subset of the fault benchmark: all faults found and named, no control flagged.

One fault a family, of seven families, and each with few experiments; `make faults` has all. `tests/e2e/test_drift.py`
has one of the data, `tests/train` of the others.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.faults.__main__ import CATALOGUE, HELD_OUT_RESULTS, _known, _merged, pages
from bench.faults.bench import Result, run_all
from bench.faults.catalogue import CONTROLS, FAULTS
from bench.faults.held_out import SETS

SEED = 3
INJECTORS = Path(__file__).resolve().parents[2] / "bench" / "faults" / "injectors"
_SUBSET = frozenset({
    "encoder-bug", "pooler-without-tanh", "hidden-dropout-on", "decay-without-the-rate", "softmax-spelt-out",
    "racing-reduction", "bf16-gelu-and-short-evaluation",
})  # fmt: skip
_CONTROLS = frozenset({"two-threads", "avx2"})


@pytest.mark.slow
def test_some_faults_are_named_and_controls_pass(tmp_path: Path) -> None:
    chosen = [item for item in CATALOGUE if item.name in _SUBSET] + [
        item for item in CONTROLS if item.name in _CONTROLS
    ]
    assert len({item.family for item in chosen}) == len(_SUBSET) + 1
    assert len(chosen) == len(_SUBSET) + len(_CONTROLS)
    results = run_all(tmp_path, [(item, SEED) for item in chosen])
    missed = [result for result in results if not result.right]
    assert not missed
    faults = [result for result in results if result.expected]
    assert sum(set(fault.sure) == {"confirmed"} for fault in faults) >= 0.8 * len(faults)


def test_the_catalogue_is_as_large_as_promised() -> None:
    assert len(FAULTS) >= 45
    assert len(CONTROLS) >= 12
    entries = (*CATALOGUE, *(entry for held in SETS if not held.seen for entry in held.entries))
    assert len({entry.name for entry in entries}) == len(entries)
    assert all(entry.words for entry in entries)


def test_injectors_patch_what_the_trainer_has() -> None:
    """A fault that fails in its injector trains nothing, and the judge has nothing to find."""
    gone = []
    for path in sorted(INJECTORS.rglob("*.py")):
        tree = ast.parse(path.read_text())
        modules = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("plumbline."):
                names = [(name.asname or name.name, f"{node.module}.{name.name}") for name in node.names]
                modules |= {name: import_module(whole) for name, whole in names if is_module(whole)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                owner, name = node.value, node.attr
            elif isinstance(node, ast.Call) and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                owner, name = node.args[0], str(node.args[1].value)
            else:
                continue
            if isinstance(owner, ast.Name) and owner.id in modules and not hasattr(modules[owner.id], name):
                gone.append(f"{path.name}:{node.lineno}: {owner.id}.{name}")
    assert gone == []


def is_module(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a class
        return False


def test_what_the_held_out_set_first_gave_is_never_replaced() -> None:
    """A later run, on a judge that has seen it, must not pass for the first."""
    for number, path in HELD_OUT_RESULTS.items():
        known = _known(path)["results"]
        if not known:  # written, and not run yet
            continue
        first = known[0]
        again = Result(first["name"], first["family"], first["seed"], first["expected"], "pass", detected=False)
        assert _merged([again], 1.0, held_out=number)["results"] == known


def test_the_pages_are_those_of_the_results() -> None:
    """`python -m bench.faults --report` writes them."""
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, path.name
