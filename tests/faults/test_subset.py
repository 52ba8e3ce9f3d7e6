"""Subset of the fault benchmark: all faults found and named, no control flagged.

One fault of each of some kinds, each with few experiments; `make faults` has all. `tests/e2e` has one of
the data, `tests/train` of the others.
"""

from __future__ import annotations

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.faults.__main__ import PAGE, cell_of, drawn, merged, page_of_results
from bench.faults.bench import Result, run_all
from bench.faults.catalogue import FILES, entries
from bench.faults.results import FOLDER
from bench.faults.wrong_passes import ATTEMPTS, _injector

SEED = 3
INJECTORS = Path(__file__).resolve().parents[2] / "bench" / "faults" / "injectors"
_SUBSET = frozenset({
    "encoder-bug", "decay-without-the-rate", "racing-reduction", "bf16-gelu-and-short-evaluation",
})  # fmt: skip
_CONTROLS = frozenset({"other-isa"})


@pytest.mark.long
def test_some_faults_are_named_and_controls_pass(tmp_path: Path) -> None:
    chosen = [entry for entry in entries() if entry.name in _SUBSET | _CONTROLS]
    assert len(chosen) == len(_SUBSET) + len(_CONTROLS)
    results = run_all(tmp_path, [(entry, SEED) for entry in chosen])
    missed = [result for result in results if not result.right]
    assert not missed
    faults = [result for result in results if result.expected]
    assert sum(set(fault.sure) == {"confirmed"} for fault in faults) >= 0.8 * len(faults)


def test_the_catalogue_has_each_kind_once_and_stays_small() -> None:
    """One run of all judges it within an hour on two cores."""
    faults = [entry for entry in entries() if entry.expected]
    assert len({entry.name for entry in entries()}) == len(entries())
    assert len(faults) <= 250
    assert len(entries()) - len(faults) <= 60
    assert {entry.family for entry in entries()} == set(FILES)
    assert all(entry.words for entry in entries())


def test_each_fault_and_attempt_has_an_injector() -> None:
    paths = [path for entry in entries() for path in (entry.alter, *entry.inject.split(",")) if path]
    paths += map(_injector, ATTEMPTS)
    gone = []
    for path in paths:
        module, _, name = path.rpartition(".")
        if not hasattr(import_module(f"bench.faults.injectors.{module}"), name):
            gone.append(path)
    assert gone == []


def test_a_fault_from_outside_is_found_by_its_name() -> None:
    """Drills put faults into training processes by the variable that `sitecustomize` reads."""
    root = INJECTORS.parents[2]
    named = [
        node.value
        for path in sorted((root / "drills").glob("*.py"))
        for mapping in ast.walk(ast.parse(path.read_text()))
        if isinstance(mapping, ast.Dict)
        for key, node in zip(mapping.keys, mapping.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "PLUMBLINE_FAULT" and isinstance(node, ast.Constant)
    ]
    assert named
    for name in named:
        module, _, function = str(name).rpartition(".")
        assert hasattr(import_module(f"bench.faults.injectors.{module}"), function), name


def test_a_sample_has_controls_and_repeats() -> None:
    sample = drawn(12, 1)
    assert [bool(entry.expected) for entry in sample].count(True) == 12
    assert len(sample) == 15
    assert sample == drawn(12, 1)
    assert sample != drawn(12, 2)


def test_a_fresh_result_replaces_the_known_one() -> None:
    first, second, *_ = entries()
    known = [
        cell_of(Result(name, "files", 1, "data.content", "pass", detected=False, judge="before"))
        for name in (second.name, first.name, "of-an-entry-that-is-gone")
    ]
    fresh = cell_of(Result(first.name, "files", 1, "data.content", "drift", detected=True, judge="now"))
    cells = merged(known, [fresh])
    assert [(cell["name"], cell["judge"]) for cell in cells] == [(first.name, "now"), (second.name, "before")]


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


def test_the_page_is_that_of_the_results() -> None:
    """`python -m bench.faults --report` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page_of_results()


def test_raw_results_stay_small() -> None:
    """History keeps the others."""
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 1_000_000
