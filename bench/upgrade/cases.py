"""The benchmark's cases: which packages change, what the guilty ones do, and what has to be answered."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Case:
    """One upgrade."""

    name: str
    num_changes: int
    """All packages that change."""
    guilty: dict[str, str] = field(default_factory=dict)
    """Installed package to the name of its effect."""
    culprits: frozenset[frozenset[str]] = frozenset()
    """The sets that have to be named, exactly."""
    allowed: frozenset[str] = frozenset()
    """Packages that may be named besides: they have an effect of their own, which another one hides."""
    verdict: str = "drift"
    kind: str = "changed"
    """`changed`, or the name of a way to build the case in `build.py`."""
    speed: bool = False


def _alone(name: str, effect: str, package: str, num_changes: int, **keys: object) -> Case:
    return Case(name, num_changes, {package: effect}, frozenset({frozenset({package})}), **keys)  # type: ignore[arg-type]


CASES: tuple[Case, ...] = (
    Case("cannot-resolve", 5, {}, frozenset({frozenset({"filelock"})}), verdict="invalid", kind="conflict"),
    Case("missing-version", 5, {}, frozenset({frozenset({"tqdm"})}), verdict="invalid", kind="missing"),
    Case("unbuildable", 5, {}, frozenset({frozenset({"tqdm"})}), verdict="invalid", kind="unbuildable"),
    Case("benign-5", 5, verdict="pass"),
    Case("never-loaded", 5, verdict="pass", kind="unloaded"),
    _alone("one-of-5", "operator", "tqdm", 5),
    _alone("cannot-import", "import", "filelock", 5),
    _alone("dropout-only", "dropout", "packaging", 5),
    _alone("evaluation-only", "evaluation", "filelock", 5),
    _alone("initialisation-only", "initialisation", "safetensors", 5),
    _alone("tokenizer-training-only", "tokenizer", "packaging", 5),
    _alone("dataset-reading-only", "dataset", "typing-extensions", 5),
    Case("added", 5, {}, frozenset({frozenset({"bench-added"})}), kind="added"),
    Case("removed", 5, {}, frozenset({frozenset({"bench-removed"})}), kind="removed"),
    Case("transitive", 5, {}, frozenset({frozenset({"bench-inner"})}), kind="transitive"),
    _alone("precision", "precision", "packaging", 5),
    _alone("loss-of-5", "loss", "tqdm", 5),
    Case("pair", 8, {}, frozenset({frozenset({"filelock", "tqdm"})}), kind="pair"),
    Case("two-independent", 8, {"tqdm": "operator", "filelock": "norm"},
         frozenset({frozenset({"tqdm"}), frozenset({"filelock"})})),
    Case("lands-reverted-lands", 6, {}, frozenset({frozenset({"regex"})}), frozenset({"tqdm"}), kind="reverted"),
    Case("poisoned-cache", 5, verdict="pass", kind="poisoned"),
    _alone("flaky", "flaky", "tqdm", 6),
    _alone("one-of-20", "operator", "tqdm", 20),
    Case("import-and-drift", 10, {"tqdm": "import", "filelock": "operator"},
         frozenset({frozenset({"tqdm"}), frozenset({"filelock"})})),
    _alone("slow-8", "slow", "tqdm", 5, speed=True),
    _alone("one-of-100", "operator", "tqdm", 100),
    Case("benign-20", 20, verdict="pass"),
)  # fmt: skip
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
"""Cases written before any of the benchmark was run, and run once."""
