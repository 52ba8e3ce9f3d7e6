"""Section of the report about production settings: attempts at a wrong pass, and benign pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.faults.benign_pairs import PRECISIONS, SETTINGS
from bench.faults.wrong_passes import ATTEMPTS, PLACES, is_right

__all__ = ["production_section"]

_WHERE = {"variable": "equal machine, seven harmless variables", "isa": "AVX2 instead of AVX-512"}
_PART = {"learn": "`learn`", "probe": "probe, behind the first portable steps", "speed": "`speed`"}


def production_section(attempts: dict[str, Any], benign: dict[str, Any]) -> list[str]:
    """Return the lines of the section."""
    return [*_attempts(attempts), "", *_benign(benign)]


def _attempts(document: dict[str, Any]) -> Iterator[str]:
    cells = document["cells"]
    yield from (
        "## Attempts at a wrong pass",
        "",
        f"{len(ATTEMPTS)} faults of one part of a training, as small as their kind allows, each planted twice by",
        f"`{document['command']}`. The spec has all parts: a probe of 8 steps with 4 portable ones, `speed` in bf16",
        "or fp16 (compiled, packed or over lists of tensors where the fault needs it), and a curve of 10 steps. Causes",
        "and places were written, and committed, before the first run; the judge compared, without experiments.",
        *_history(document),
        f"Raw: [wrong-passes.json](../bench/results/wrong-passes.json). Machine: {document['machine']}.",
        "",
        "| planted in | where | attempts | passed | no verdict | right cause at the right place |",
        "|---|---|---|---|---|---|",
    )
    for kind in ("learn", "probe", "speed", ""):
        for place in PLACES:
            chosen = [cell for cell in cells if cell["place"] == place and _kind(cell) == kind]
            verdicts = [cell["verdict"] for cell in chosen]
            others = sum(verdict not in {"pass", "drift"} for verdict in verdicts)
            names = f"| {_PART.get(kind, 'production kernels')} | {_WHERE[place]}"
            yield f"{names} | {len(chosen)} | {verdicts.count('pass')} | {others} | {sum(map(is_right, chosen))} |"
    wrong = [cell for cell in cells if not is_right(cell)]
    if wrong:
        yield from (
            "",
            "Not as written beforehand:",
            "",
            "| fault | where | expected | named | at |",
            "|---|---|---|---|---|",
        )
    for cell in wrong:
        named, expected = ", ".join(cell["named"]) or cell["verdict"], f"{cell['cause']} {cell['expected_at']}".strip()
        yield f"| {cell['fault'].replace('_', '-')} | {cell['place']} | {expected} | {named} | {cell['at']} |"


def _history(document: dict[str, Any]) -> Iterator[str]:
    """Yield how many attempts ran, and which ran once more."""
    passed, again = document["wrong_passes"], document.get("replaced", [])
    yield f"{len(document['cells'])} of {document['planned']} attempts have run, {len(passed)} passed."
    if again:
        yield "The judge was changed after the first 42, eight of which had another name, as was a fault outside"
        yield f"of the curve. {len(again)} attempts ran once more; `replaced` has their first results, of which"
        passed_then = sum(cell["verdict"] == "pass" for cell in again)
        yield f"{passed_then} passed: those of packed rows whose texts left no room to pack another, so that every bit"
        yield "was the reference's. Beside AVX2, set by a variable on a processor with AVX-512, two of packed rows end"
        yield "in an error of torch, two of compiled kernels in a crash of what torch compiled, faulty or not."


def _kind(cell: dict[str, Any]) -> str:
    kind = cell["fault"].partition("_")[0]
    return kind if kind in _PART else ""


def _benign(document: dict[str, Any]) -> Iterator[str]:
    ran = {name for cell in document["cells"] for name in cell["pair"]}
    absent = [name for name in SETTINGS if name not in ran]
    absent += [name for name in PRECISIONS if all(cell["precision"] != name for cell in document["cells"])]
    yield from (
        "## Benign pairs at production settings",
        "",
        "Each setting trains all three parts once; every two settings of one precision are judged both ways:",
        f"`{document['command']}`. Settings: {', '.join(name for name in SETTINGS if name in ran)}.",
        *([f"Not run: {', '.join(absent)}."] if absent else []),
        "The probe stays strict fp32. Raw: [benign-pairs.json](../bench/results/benign-pairs.json).",
        "",
        "| precision of `speed` and `learn` | pairs | changed a bit | flagged |",
        "|---|---|---|---|",
    )
    for precision in dict.fromkeys(cell["precision"] for cell in document["cells"]):
        cells = [cell for cell in document["cells"] if cell["precision"] == precision]
        flagged = sum(set(cell["verdicts"]) != {"pass"} for cell in cells)
        yield f"| {precision} | {len(cells)} | {sum(bool(cell['changed']) for cell in cells)} | {flagged} |"
