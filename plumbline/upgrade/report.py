"""Renderers of the answer: text, HTML, JUnit XML and Markdown.

Texts that come from packages are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree as ET

from plumbline.report.markdown import safe
from plumbline.report.words import SYMBOLS, clean
from plumbline.upgrade.answer import Culprit, UpgradeAnswer

_MOST_ROWS = 200
_MARK = "<!-- plumbline-upgrade -->"
"""By which a CI job finds its own comment again."""


def text_lines(answer: UpgradeAnswer) -> Iterator[str]:
    """Yield the lines of the answer for a terminal."""
    yield answer.verdict
    for sentence in answer.sentences:
        yield f"  {sentence}"
    if answer.constraints:
        yield "  to keep the current versions meanwhile, add to a constraints file:"
        yield from (f"    {line}" for line in answer.constraints)
    for culprit in answer.culprits:
        yield from (f"  {label}: {url}" for label, url in culprit.links.items())
    if answer.speed is not None:
        speed = answer.speed
        interval = f"{speed.low:+.1%} to {speed.high:+.1%}, {speed.num_pairs} pairs"
        yield f"  throughput: {speed.outcome}; lost: {interval}"
    for use in answer.memory:
        yield f"  peak {use.kind}: {use.outcome}; grown: {use.low:+.1%} to {use.high:+.1%}, {use.num_pairs} pairs"
    if answer.not_trained:
        yield f"  training loads no code of: {', '.join(answer.not_trained)}"
    if answer.not_from_index:
        yield f"  not tried, for no Python index serves them: {', '.join(answer.not_from_index)}"
    if answer.notes != answer.sentences:
        yield from (f"  {note}" for note in answer.notes)


def junit_report(answer: UpgradeAnswer) -> str:
    """Return the answer as JUnit XML.

    It has one case for each culprit, or one for the verdict.
    """
    suite = ET.Element("testsuite", name="plumbline upgrade", time=f"{max(0.0, answer.seconds):.3f}")
    for culprit in answer.culprits:
        names = ", ".join(change.package for change in culprit.changes)
        case = ET.SubElement(suite, "testcase", name=clean(names, 200), classname=f"plumbline.upgrade.{culprit.effect}")
        entry = ET.SubElement(case, "failure", message=clean(culprit.sentence, 1000), type=culprit.effect)
        entry.text = "\n".join(clean(url) for url in culprit.links.values())
    if not answer.culprits:
        case = ET.SubElement(suite, "testcase", name="verdict", classname="plumbline.upgrade")
        if answer.verdict != "pass":
            tag = "failure" if answer.verdict == "drift" else "error"
            ET.SubElement(case, tag, message=clean("; ".join(answer.sentences), 1000), type=answer.verdict)
    for key, tag in (("failures", "failure"), ("errors", "error")):
        suite.set(key, str(len(suite.findall(f"testcase/{tag}"))))
    suite.set("tests", str(len(suite)))
    root = ET.Element("testsuites", name="plumbline upgrade")
    for key in ("tests", "failures", "errors"):
        root.set(key, suite.get(key, "0"))
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def summary_report(answer: UpgradeAnswer) -> str:
    """Return Markdown for a CI job's summary."""
    lines = [f"## {SYMBOLS[answer.verdict]} Plumbline upgrade: {answer.verdict}", ""]
    lines += [f"- {safe(sentence, 1000)}" for sentence in answer.sentences]
    if answer.constraints:
        lines += ["", "Keep the current versions meanwhile:", "", "```", *map(_plain, answer.constraints), "```"]
    lines += ["", *_links(answer.culprits), *_trials(answer)]
    if answer.not_trained:
        lines += ["", f"Training loads no code of {safe(', '.join(answer.not_trained), 2000)}."]
    if answer.not_from_index:
        lines += ["", f"Not tried, for no Python index serves them: {safe(', '.join(answer.not_from_index), 2000)}."]
    return "\n".join(lines) + "\n"


def comment_report(answer: UpgradeAnswer) -> str:
    """Return Markdown for a comment on a pull request.

    It contains a mark, by which a CI job finds and replaces it.
    """
    lines = [_MARK, f"**Plumbline upgrade: {SYMBOLS[answer.verdict]} {answer.verdict}**", ""]
    lines += [safe(sentence, 1000) for sentence in answer.sentences]
    if answer.constraints:
        lines += ["", "```", *map(_plain, answer.constraints), "```"]
    changes = [safe(str(change), 200) for change in answer.changes[:_MOST_ROWS]]
    lines += ["", "<details><summary>Changes and trials</summary>", "", *(f"- {line}" for line in changes), ""]
    return "\n".join([*lines, *_trials(answer), "", "</details>"]) + "\n"


def html_report(answer: UpgradeAnswer) -> str:
    """Return the answer as one self-contained HTML page."""
    from plumbline import __version__
    from plumbline.report.html import template

    return template("upgrade.html.j2").render(answer=answer, symbol=SYMBOLS[answer.verdict], version=__version__)


def _plain(line: str) -> str:
    return clean(line, 300).replace("`", "")


def _links(culprits: tuple[Culprit, ...]) -> list[str]:
    links = {label: url for culprit in culprits for label, url in culprit.links.items()}
    return [f"- {safe(label, 80)}: `{_plain(url)}`" for label, url in links.items()]


def _trials(answer: UpgradeAnswer) -> list[str]:
    cells = [
        (trial.name, trial.part, str(len(trial.changes)), trial.measured or trial.outcome, f"{trial.seconds:.0f}")
        for trial in answer.trials[:_MOST_ROWS]
    ]
    rows = ["| " + " | ".join(safe(cell, 40) for cell in row) + " |" for row in cells]
    return ["| trial | part | changes | outcome | seconds |", "|---|---|--:|---|--:|", *rows] if rows else []
