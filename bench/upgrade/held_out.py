"""Cases written before any of the benchmark was run, and run once."""

from __future__ import annotations

from bench.upgrade.cases import Case


def _alone(name: str, effect: str, package: str, num_changes: int) -> Case:
    return Case(name, num_changes, {package: effect}, frozenset({frozenset({package})}))


HELD_OUT: tuple[Case, ...] = (
    _alone("clipping", "gradient", "regex", 7),
    _alone("norm-of-12", "norm", "filelock", 12),
    _alone("dropout-of-16", "dropout", "typing-extensions", 16),
    _alone("tokenizer-of-9", "tokenizer", "packaging", 9),
    _alone("import-of-13", "import", "regex", 13),
    Case("three-independent", 9, {"regex": "operator", "filelock": "norm", "packaging": "dropout"},
         frozenset({frozenset({"regex"}), frozenset({"filelock"}), frozenset({"packaging"})})),
    Case("benign-11", 11, verdict="pass"),
    Case("conflict-of-4", 4, {}, frozenset({frozenset({"filelock"})}), verdict="invalid", kind="conflict"),
)  # fmt: skip
