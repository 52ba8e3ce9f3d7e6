"""Page of the benchmark's results, docs/FAULTS.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.faults.benign_pairs import SETTINGS, is_flagged
from bench.faults.catalogue import entries
from bench.faults.wrong_passes import ATTEMPTS, PLACES, is_right

Cell = dict[str, Any]
_PARTS = {
    "files": "files", "inputs": "probe", "weights": "probe", "operators": "probe", "training": "probe",
    "evaluations": "probe", "attention": "`speed`", "kernels": "`speed`", "updates": "`speed`",
    "speed_inputs": "`speed`", "learning": "`learn`", "resumes": "`learn`, resumed",
    "learning_evaluation": "`learn`", "ranks": "second process", "throughput": "time", "combined": "two faults",
    "doors": "once passed",
}  # fmt: skip
"""Family → the part of a training that its faults are in."""
_ATTEMPTED = {"learn": "`learn`", "probe": "probe, behind the first windows", "speed": "`speed`"}
_ASKED = {"all": (1, 1), "any": (0, 1), "none": (0, 0), "≥ 90%": (0.9, 1)}
"""What is asked of a row → the least and the largest share."""
_PLACES = {"variable": "equal machine, seven harmless variables", "isa": "kernels of a different instruction set"}


@dataclass(frozen=True)
class Totals:
    """Required totals, and whether they hold."""

    lines: tuple[str, ...]
    holds: bool


def _named(cell: Cell) -> str:
    if cell["verdict"] != "drift":
        return f"({'passed' if cell['verdict'] == 'pass' else cell['verdict']})"
    wanted = cell["expected"].split(" + ")
    return " + ".join(sorted(cell["named"], key=lambda code: wanted.index(code) if code in wanted else 9)) or "(none)"


def _right(cell: Cell) -> bool:
    """Return whether exactly the expected causes are named; two parts of a training may name the same one."""
    return bool(set(cell["named"]) == set(cell["expected"].split(" + ")) and cell["verdict"] == "drift")


def _wrong(cell: Cell) -> bool:
    return bool(set(cell["named"]) - {*cell["expected"].split(" + "), "unattributed"})


def _detected(cell: Cell) -> bool:
    return bool(cell["detected"])


def _confirmed(cell: Cell) -> bool:
    return _right(cell) and set(cell["sure"]) == {"confirmed"}


def _loaded(cell: Cell) -> bool:
    """Return whether the result was measured on a busy machine."""
    return cell["verdict"] == "inconclusive" and ("not quiet" in cell["why"] or "own spread" in cell["why"])


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "none"


def totals_of(cells: list[Cell]) -> Totals:
    """Return the totals, with the project's requirements."""
    faults = [cell for cell in cells if cell["expected"] and cell["family"] != "throughput"]
    controls = [cell for cell in cells if not cell["expected"]]
    slow = [cell for cell in cells if cell["expected"] and cell["family"] == "throughput"]
    quiet = [cell for cell in slow if not _loaded(cell)]
    rows = [
        ("faults detected", faults, _detected, "all"),
        ("with exactly the right cause", faults, _right, "any"),
        ("of these `confirmed` by experiment", faults, _confirmed, "any"),
        ("with a wrong cause among those named", faults, _wrong, "any"),
        ("controls flagged", controls, lambda cell: cell["verdict"] != "pass" and not _loaded(cell), "none"),
        ("slow trainings on a busy machine: `inconclusive`", slow, _loaded, "any"),
        ("the others detected", quiet, _detected, "all"),
        ("with the right cause", quiet, _right, "≥ 90%"),
        ("slow trainings with a wrong cause", slow, _wrong, "none"),
    ]
    lines, holds = [], True
    for what, mine, test, asked in rows if slow else rows[:5]:
        num, whole = sum(map(test, mine)), len(mine)
        least, most = _ASKED[asked]
        held = least * whole <= num <= most * whole
        lines.append(f"| {what} | {_share(num, whole)} | {asked} | {'yes' if held else '**no**'} |")
        holds &= held
    return Totals(tuple(lines), holds)


def _by_cause(cells: list[Cell]) -> Iterator[str]:
    """Yield the table of causes and parts: how many faults, and how many of them have the right name."""
    faults = [cell for cell in cells if cell["expected"]]
    parts = list(dict.fromkeys(_PARTS.values()))
    yield f"| cause | {' | '.join(parts)} |"
    yield "|---" * (len(parts) + 1) + "|"
    causes = Counter("two causes" if " + " in cell["expected"] else cell["expected"] for cell in faults)
    for cause, _ in causes.most_common():
        mine = [cell for cell in faults if cause in {cell["expected"], " + " in cell["expected"] and "two causes"}]
        row = [[_right(cell) for cell in mine if _PARTS.get(cell["family"], cell["family"]) == part] for part in parts]
        yield f"| {cause} | {' | '.join(f'{sum(right)}/{len(right)}' if right else '' for right in row)} |"


def _missed(cells: list[Cell]) -> list[str]:
    """Return a table of what was not judged as expected."""
    missed = [cell for cell in cells if (not _right(cell) if cell["expected"] else cell["verdict"] != "pass")]
    words = {entry.name: entry.words for entry in entries()}
    lines = [
        f"| {cell['name']} | {words[cell['name']]} | {cell['expected'] or '(control)'} | {_named(cell)} |"
        for cell in missed
    ]
    head = ["Not as expected:", "", "| entry | what it changes | expected | named |", "|---|---|---|---|"]
    return [*head, *lines, ""] if missed else []


def _judges(cells: list[Cell]) -> str:
    """Say by which versions of the judge's code the results were judged."""
    counts = Counter(cell["judge"] or "versions before results said so" for cell in cells).most_common()
    shown = ", ".join(f"{count} by `{judge}`" if " " not in judge else f"{count} by {judge}" for judge, count in counts)
    own = "`python -m bench.faults --judge` prints yours; others are earlier"
    return f"Judged by digests of `plumbline/judge` ({own}): {shown}."


_HEAD = ("| what | got | asked | holds |", "|---|---|---|---|")


def page(document: dict[str, Any], attempts: dict[str, Any], pairs: dict[str, Any]) -> str:
    """Return the page of how to read the benchmark, with its tables."""
    cells = document["cells"]
    num_faults = len({cell["name"] for cell in cells if cell["expected"]})
    num_controls = len({cell["name"] for cell in cells if not cell["expected"]})
    lines = [
        *_FIRST,
        *_HEAD,
        *totals_of(cells).lines,
        "",
        *_HOW,
        f"{num_faults} faults and {num_controls} controls, {len(cells)} judged trainings,",
        f"{sum(cell['experiments'] for cell in cells)} experiments, {document['seconds'] / 60:.0f} minutes.",
        f"The slowest comparison of two records took {max(cell['judge_seconds'] for cell in cells) * 1e3:.0f} ms.",
        f"Machine: {document['machine']}. {_judges(cells)}",
        *([document["note"]] if "note" in document else []),
        "Raw: [faults.json](../bench/results/faults.json).",
        "",
        "## By cause and part",
        "",
        "Right of all, by the expected cause and the part of a training that the fault is in:",
        "",
        *_by_cause(cells),
        "",
        *_missed(cells),
        *_attempts(attempts["cells"]),
        *_benign(pairs["cells"]),
    ]
    return "\n".join(lines) + "\n"


def _attempts(cells: list[Cell]) -> Iterator[str]:
    passed = sum(cell["verdict"] == "pass" for cell in cells)
    yield from (
        "## Attempts at a wrong pass",
        "",
        f"{len(ATTEMPTS)} faults of one part of a training, as small as their kind allows, each planted twice by",
        "`python -m bench.faults.wrong_passes`, and compared without experiments.",
        f"{len(cells)} of {len(ATTEMPTS) * len(PLACES)} attempts have run, {passed} passed.",
        "Raw: [wrong-passes.json](../bench/results/wrong-passes.json).",
        "",
        "| planted in | where | attempts | passed | right cause at the right place |",
        "|---|---|---|---|---|",
    )
    for kind in (*_ATTEMPTED, ""):
        for place, where in _PLACES.items():
            mine = [cell for cell in cells if cell["place"] == place and _kind(cell) == kind]
            passed, right = sum(cell["verdict"] == "pass" for cell in mine), sum(map(is_right, mine))
            yield f"| {_ATTEMPTED.get(kind, 'production kernels')} | {where} | {len(mine)} | {passed} | {right} |"
    yield ""


def _kind(cell: Cell) -> str:
    kind: str = cell["fault"].partition("_")[0]
    return kind if kind in _ATTEMPTED else ""


def _benign(cells: list[Cell]) -> Iterator[str]:
    yield from (
        "## Benign pairs at production settings",
        "",
        f"{len(SETTINGS)} settings train all three parts once; every two of one precision are judged both ways by",
        "`python -m bench.faults.benign_pairs`. The probe stays strict fp32.",
        "Raw: [benign-pairs.json](../bench/results/benign-pairs.json).",
        "",
        "| precision of `speed` and `learn` | pairs | changed a bit | flagged |",
        "|---|---|---|---|",
    )
    for precision in dict.fromkeys(cell["precision"] for cell in cells):
        mine = [cell for cell in cells if cell["precision"] == precision]
        changed = sum(bool(cell["changed"]) for cell in mine)
        yield f"| {precision} | {len(mine)} | {changed} | {sum(map(is_flagged, mine))} |"


_FIRST = (
    "# How often a cause is right",
    "",
    "Faults are planted from outside into an unchanged trainer: a patched library, altered data, an environment",
    "variable, a limit on the process. Controls are changes that must not be reported. The judge was changed with",
    "these entries in sight. On thirteen sets before that it was right in 90.5%, wrong in 5.6%, and flagged 11 of 179",
    "controls ([ADR 0034](adr/0034-one-catalogue-of-faults.md)).",
    "",
)
_HOW = (
    "## How it is measured",
    "",
    "`make faults` judges all entries; `python -m bench.faults --sample 12` draws some, `--list` says what each",
    "changes, and `--report` writes this page. The catalogue has each cause in each part of a training and at each",
    "place there, at the start and late, in each setting, and behind a different instruction set.",
    "",
    "- **detected**: the verdict is a drift.",
    "- **right**: the named causes are exactly the expected ones, and no other.",
    "- **confirmed**: right, and every cause is confirmed by an experiment. Causes of throughput never are.",
    "- **wrong cause**: one of the named causes is not expected, and is not `unattributed`.",
    "- **flagged**: a control whose verdict is not `pass`.",
    "",
    "Thermal throttle, memory pressure and quota are simulated in what the sensors say. A slower kernel or optimizer",
    "comes with a different build of torch in the record.",
    "",
)
