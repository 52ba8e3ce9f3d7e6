"""Mutants of the judge's constants and rules, each with the tests that must fail.

The first nine are those that once survived. `python bench/judge/named_mutants.py` tries them in a copy of the tree, and
writes `bench/results/mutants-named.json`. `bench/judge/mutants.py` tries cosmic-ray's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutation import ROOT, copy_tree

RESULT = ROOT / "bench" / "results" / "mutants-named.json"
J, T, LIMITS = "plumbline/judge/", "tests/unit/judge/test_", "plumbline/limits.py"
_TIMEOUT_SECONDS = 300

MUTANTS: tuple[tuple[str, str, str, str], ...] = (
    (LIMITS, "FACTOR = 8.0", "FACTOR = 24.0", f"{T}tolerance.py"),
    (LIMITS, "DOUBLING_STEPS = 9.0", "DOUBLING_STEPS = 2.0", f"{T}tolerance.py"),
    (LIMITS, '"forward": 40.0', '"forward": 400.0', f"{T}tolerance.py"),
    (f"{J}gates/accuracy.py", "_outcome(abs(gap)", "_outcome(gap", f"{T}boundaries.py"),
    (f"{J}gates/throughput.py", "MEDIAN_ERROR * spread", "10 * MEDIAN_ERROR * spread", f"{T}boundaries.py"),
    (f"{J}pair.py", "[min(known)] if known", "[max(known)] if known", f"{T}boundaries.py"),
    (
        f"{J}rungs/evaluation.py",
        'pair.candidate), limit_of(None, "gradient", pair.precision, left.step)',
        "pair.candidate), 1e9",
        f"{T}boundaries.py",
    ),
    (f"{J}consensus.py", "sound if reference in self.wrong else ()", "sound", f"{T}consensus.py"),
    ("plumbline/sketch.py", " ^ block_salt(block)", "", "tests/unit/test_sketch.py"),
    (LIMITS, "ROUNDING_ONLY = 0.5", "ROUNDING_ONLY = 0.05", f"{T}tolerance.py"),
    (LIMITS, "COARSE_UNITS = 4.0", "COARSE_UNITS = 40.0", f"{T}tolerance.py"),
    (f"{J}own_distance.py", "is_rounding_only(min(known))", "is_rounding_only(max(known))", f"{T}zero_gradients.py"),
    (f"{J}pair.py", "math.isfinite(self.error) and ", "", f"{T}boundaries.py"),
    (f"{J}rungs/bits.py", "return (kernel, doubt, *likely)", "return (*likely, doubt)", f"{T}compare.py"),
    (LIMITS, "VANISHED = 0.01", "VANISHED = 10.0", f"{T}confirm.py"),
    (f"{J}walk.py", "(apart is None or _is_at_or_before(causes[0], apart))", "False", f"{T}confirm.py"),
    (f"{J}rungs/data.py", "lists[0] != lists[1] and ", "", f"{T}compare_data.py"),
    (LIMITS, "STEPS_AFTER = 2", "STEPS_AFTER = 0", f"{T}compare.py"),
    (f"{J}rungs/optimizer.py", "not _is_collinear(pair, step, factors[0])", "False", f"{T}compare.py"),
    (LIMITS, "EXACT = 1e-12", "EXACT = 1e-9", f"{T}boundaries.py"),
    (LIMITS, "OWN_SHARE = 0.3", "OWN_SHARE = 0.03", f"{T}boundaries.py"),
    (LIMITS, "FEWER_BITS = 3", "FEWER_BITS = 8", f"{T}boundaries.py"),
    (f"{J}gates/throughput.py", "and _is_excused(left, (right, confirms), gates, cores)", "", f"{T}speed.py"),
    (LIMITS, "PHASE = 0.6", "PHASE = 0.5", f"{T}boundaries.py"),
    (LIMITS, "MORE_WORK = 1.5", "MORE_WORK = 2.5", f"{T}boundaries.py"),
    (LIMITS, "TAKEN_TIME = 0.03", "TAKEN_TIME = 0.3", f"{T}boundaries.py"),
    (f"{J}consensus.py", "self.steady[name] is not False and name not in self.wrong", "True", f"{T}consensus.py"),
    (f"{J}consensus.py", "if self.steady[name]:", "if False:", f"{T}consensus.py"),
    (f"{J}consensus.py", "if chosen in self.wrong or self.steady[chosen] is False:", "if False:", f"{T}consensus.py"),
    (
        f"{J}consensus.py",
        "if all(evidence.can_agree(reference, name) for name in others):",
        "if False:",
        f"{T}consensus.py",
    ),
    (f"{J}consensus.py", "if len(names) < len(self.records)", "", f"{T}consensus.py"),
    (f"{J}consensus.py", 'if accepted.verdict == "drift":', "if True:", f"{T}consensus.py"),
    (f"{J}consensus.py", "failed_at(record) is not None]", "False]", f"{T}consensus.py"),
    (f"{J}consensus.py", "different_precision(record) is not None]", "False]", f"{T}consensus.py"),
    (f"{J}canary.py", 'return self.verdict == "drift"', 'return self.verdict != "pass"', f"{T}canary.py"),
    (
        f"{J}canary.py",
        "min(limits.CANARY_DROP * least, (1 + least) / 2)",
        "limits.CANARY_DROP * least",
        f"{T}canary.py",
    ),
    (f"{J}canary.py", "max(gates.throughput_drop, spread) if spread < 1 else ", "", f"{T}canary.py"),
    (f"{J}canary.py", "beyond if math.isfinite(beyond) else 0.0", "0.0", f"{T}canary.py"),
    (f"{J}own_distance.py", "tiny.get(tap.name, True) and ", "", f"{T}zero_gradients.py"),
    (
        f"{J}own_distance.py",
        'for stage in ("gradient", "weight")}',
        'for stage in ("gradient",)}',
        f"{T}zero_gradients.py",
    ),
    (f"{J}own_distance.py", "(guessed - shown.keys())", "guessed", f"{T}zero_gradients.py"),
    (f"{J}own_distance.py", "probe.portable.slices > 1", "True", f"{T}zero_gradients.py"),
    (f"{J}own_distance.py", "if not step.outputs:", "if False:", f"{T}zero_gradients.py"),
    (f"{J}own_distance.py", "and not leg.unportable", "", f"{T}zero_gradients.py"),
    (
        f"{J}tolerance.py",
        'min(UNIT[precision], UNIT["fp32"])',
        "UNIT[precision]",
        f"{T}zero_gradients.py",
    ),
    (
        f"{J}pair.py",
        "min(own * max(cancelled, 1.0), limits.ROUNDING_ONLY)",
        "own * max(cancelled, 1.0)",
        f"{T}pair_limits.py",
    ),
    (LIMITS, "FEWER_BITS = 3", "FEWER_BITS = 4", f"{T}spec_precision.py"),
    (f"{J}spec_precision.py", 'and precision != "tf32"', "", f"{T}spec_precision.py"),
    (f"{J}spec_precision.py", "found[0] is None or ", "", f"{T}spec_precision.py"),
    (f"{J}confirm_learn.py", "learning(Pair(self.candidate, self.reference)) or ", "", f"{T}learning_causes.py"),
    (f"{J}confirm.py", "left_over >= len(self.suspicions) - 1", "True", f"{T}confirm.py"),
    (LIMITS, "CLOSER = 0.25", "CLOSER = 0.5", f"{T}boundaries.py"),
    (LIMITS, "CLOSER = 0.25", "CLOSER = 0.1", f"{T}boundaries.py"),
    (LIMITS, "MOST = 0.5", "MOST = 0.2", f"{T}compare_data.py"),
    (LIMITS, "MOST = 0.5", "MOST = 0.9", f"{T}compare_data.py"),
    (LIMITS, "COPIES = 0.25", "COPIES = 2.5", f"{T}compare_data.py"),
    (LIMITS, "MIN_EXPECTED = 4.0", "MIN_EXPECTED = 0.4", f"{T}compare_data.py"),
    (LIMITS, "MIN_EXPECTED = 4.0", "MIN_EXPECTED = 40.0", f"{T}compare_data.py"),
    (LIMITS, "EXACT = 1e-12", "EXACT = 1e-11", f"{T}portable.py"),
    (LIMITS, "EXACT = 1e-12", "EXACT = 1e-13", f"{T}portable.py"),
    (LIMITS, "ORDER_OF_UPDATE = 2e-15", "ORDER_OF_UPDATE = 2e-14", f"{T}portable.py"),
    (LIMITS, "ORDER_OF_UPDATE = 2e-15", "ORDER_OF_UPDATE = 2e-16", f"{T}portable.py"),
    (LIMITS, "SMALL_GRADIENT = 1e-3", "SMALL_GRADIENT = 1e-1", f"{T}portable.py"),
    (LIMITS, "SMALL_GRADIENT = 1e-3", "SMALL_GRADIENT = 1e-9", f"{T}portable.py"),
    (f"{J}rungs/portable.py", "if is_small or other_software(pair)", "if is_small", f"{T}portable.py"),
    (f"{J}confirm.py", "if shown <= reach:", "if True:", f"{T}second_causes.py"),
    (f"{J}confirm.py", 'in ("replay", "exact") else', 'in ("replay",) else', f"{T}second_causes.py"),
    (f"{J}confirm.py", ' and mismatch.suspicions[0].code != "device"', "", f"{T}confirm.py"),
    (f"{J}rungs/learning.py", "ours.step < parting", "ours.step <= parting", f"{T}learn_trace.py"),
)


def _try(folder: Path, mutant: tuple[str, str, str, str]) -> str:
    name, old, new, tests = mutant
    path = folder / name
    source = path.read_text(encoding="utf-8")
    if source.count(old) != 1:
        return "stale"
    path.write_text(source.replace(old, new), encoding="utf-8")
    try:
        return {0: "survived", 1: "killed"}.get(_test(folder, tests), "error")
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        path.write_text(source, encoding="utf-8")


def _test(folder: Path, *tests: str) -> int:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, timeout=_TIMEOUT_SECONDS, env=environment, check=False
    ).returncode


def main() -> int:
    """Try every mutant; return 1 for a survivor, 2 if the unchanged code fails."""
    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="plumbline-mutants-") as name:
        copy_tree(Path(name))
        if _test(Path(name), *sorted({tests for *_, tests in MUTANTS})):
            print("the tests fail without any mutant", file=sys.stderr)
            return 2
        for mutant in MUTANTS:
            outcome = _try(Path(name), mutant)
            results.append(dict(zip(("file", "old", "new", "tests"), mutant, strict=True)) | {"outcome": outcome})
            print(f"{outcome}: {mutant[0]}: {mutant[1]} -> {mutant[2]}", flush=True)
    killed = sum(result["outcome"] == "killed" for result in results)
    content = {"killed": killed, "tried": len(results), "seconds": round(time.monotonic() - began), "results": results}
    RESULT.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if killed == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
