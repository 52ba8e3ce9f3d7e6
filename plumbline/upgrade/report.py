"""Renderers of an upgrade's answer, and sentences about culprits.

Texts that come from packages are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal
from xml.etree import ElementTree as ET

from plumbline.environments.changes import Failure, PackageChange
from plumbline.report.junit import junit_document
from plumbline.report.markdown import safe
from plumbline.report.sentences import SYMBOLS, clean
from plumbline.schema.verdict import Divergence, Judgement
from plumbline.upgrade.answer import Culprit, Effect, Others, UpgradeAnswer
from plumbline.upgrade.comparison import PairedDrop

_MOST_ROWS = 200
_MARK = "<!-- plumbline-upgrade -->"
"""By which a CI job finds its own comment again."""


def text_lines(answer: UpgradeAnswer) -> Iterator[str]:
    """Yield the answer as terminal lines."""
    yield answer.verdict
    for sentence in answer.sentences:
        yield f"  {sentence}"
    if answer.constraints:
        yield "  to keep the current versions meanwhile, add to a constraints file:"
        yield from (f"    {line}" for line in answer.constraints)
    for culprit in answer.culprits:
        yield from (f"  {label}: {url}" for label, url in culprit.links.items())
    yield from (f"  {part}" for part in answer.measured)
    if answer.not_opened:
        yield f"  training opens no file of: {', '.join(answer.not_opened)}"
    yield from (f"  {note}" for note in answer.further_notes)
    yield f"  next: {answer.next_step}"


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
    root.append(suite)
    return junit_document(root)


def summary_report(answer: UpgradeAnswer) -> str:
    """Return the answer as Markdown, for a CI job's summary."""
    lines = [f"## {SYMBOLS[answer.verdict]} Plumbline upgrade: {answer.verdict}", ""]
    lines += [f"- {safe(sentence, 1000)}" for sentence in answer.sentences]
    if answer.constraints:
        lines += ["", "Keep the current versions meanwhile:", "", "```", *map(_plain, answer.constraints), "```"]
    lines += ["", *_links(answer.culprits), *_trials(answer)]
    if answer.not_opened:
        lines += ["", f"Training opens no file of {safe(', '.join(answer.not_opened), 2000)}."]
    lines += ["", *(f"- {safe(note, 2000)}" for note in (*map(str, answer.measured), *answer.further_notes))]
    lines += ["", f"**Next:** {safe(answer.next_step, 1000)}"]
    return "\n".join(lines) + "\n"


def comment_report(answer: UpgradeAnswer) -> str:
    """Return the answer as Markdown, for a pull request comment.

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
    from plumbline.report.html import rendered

    return rendered("upgrade.html.j2", answer=answer)


def _plain(line: str) -> str:
    return clean(line, 20_000).replace("`", "")  # a constraint may have a hundred hashes


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


_ALONE = {
    "numerics": "it drifts",
    "inputs": "it drifts",
    "speed": "it is slower",
    "memory": "it grows",
    "cannot-train": "it fails",
}


def culprit_of(
    effect: Effect, changes: Sequence[PackageChange], *, companions: Sequence[PackageChange] = (),
    judgement: Judgement | None = None, failures: Sequence[Failure] = (), drop: PairedDrop | None = None,
    others: Others = "pass", is_minimal: bool = True,
    links: Mapping[str, str] | None = None,
) -> Culprit:  # fmt: skip
    """Return a culprit with its describing sentence.

    `others` is the result of all other changes without it.
    """
    is_shown = (
        others != "not judged"
        and is_minimal
        and (judgement is not None or effect in ("speed", "memory", "cannot-train"))
    )
    sure: Literal["confirmed", "likely"] = "confirmed" if is_shown or effect == "cannot-install" else "likely"
    verb = "changes" if len(changes) == 1 else "change"
    sentence = f"{_names(changes)} {effect_of(effect, verb=verb, judgement=judgement, failures=failures, drop=drop)}"
    if effect == "cannot-train" and (kept := _constraints(changes)):
        sentence += f" (hint: keep {', '.join(kept.values())} until a release works with the others)"
    if effect != "cannot-install":
        sentence += f"; {sure}: {_shown(effect, changes, companions, others, is_minimal=is_minimal)}"
    return Culprit(
        effect=effect, changes=tuple(changes), companions=tuple(companions), sure=sure, is_minimal=is_minimal,
        others=others, sentence=sentence, judgement=judgement, failures=tuple(failures),
        drop=drop.drop if drop else None, least_drop=drop.low if drop else None,
        links=dict(links or {}),
    )  # fmt: skip


def _names(changes: Sequence[PackageChange]) -> str:
    names = [str(change) for change in changes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} together"


def effect_of(
    effect: Effect, *, verb: str = "changes", judgement: Judgement | None = None, failures: Sequence[Failure] = (),
    drop: PairedDrop | None = None,
) -> str:  # fmt: skip
    """Return the predicate that describes an effect in a sentence.

    `verb` agrees with its subject.
    """
    if effect == "cannot-install":
        return f"cannot be installed: {_message(failures)}"
    if effect == "cannot-train":
        return f"cannot train: {_reason(failures)}"
    if effect == "speed":
        # The least loss alone: pairs that decide early overstate it (27.1% in three pairs was 13% in the next forty).
        measured = f": at least {drop.low:.1%} of the throughput is lost ({drop.num_pairs} pairs)" if drop else ""
        return f"makes training slower{measured}"
    if effect == "memory":
        measured = (
            f": at least {drop.least:.1%} more {drop.measure} at its peak ({drop.num_pairs} pairs)" if drop else ""
        )
        return f"makes training need more memory{measured}"
    cause = judgement.causes[0] if judgement and judgement.causes else None
    at = judgement.first_divergence if judgement else None
    return f"{verb} {cause.code if cause else 'training'}{f': first at {_place(at)}' if at else ''}"


def _place(at: Divergence) -> str:
    parts = [f"step {at.step}" if at.step is not None else "", at.at or at.stage]
    return ", ".join(part for part in parts if part)


def _reason(failures: Sequence[Failure]) -> str:
    """Return why a training failed.

    If they are known: the library and the exception that ended it, and the message.
    """
    known = next((failure for failure in failures if failure.exception), None)
    return f"{known.library} raises {known.exception}: {_message([known])}" if known else _message(failures)


def _message(failures: Sequence[Failure]) -> str:
    lines = [line.strip() for failure in failures for line in failure.message.splitlines() if line.strip()]
    return (lines or ["no reason given"])[-1][:300]


def _shown(
    effect: Effect, changes: Sequence[PackageChange], companions: Sequence[PackageChange], others: Others,
    *, is_minimal: bool,
) -> str:  # fmt: skip
    alone = _ALONE[effect]
    if len(changes) > 1:
        alone = alone.replace("it drifts", "they drift").replace("it is", "they are").replace("it fails", "they fail")
        alone = alone.replace("it grows", "they grow")
    pronoun = "it" if len(changes) == 1 else "them"
    go = "goes" if len(companions) == 1 else "go"
    with_whom = (
        f"with {', '.join(change.package for change in companions)}, which {go} with {pronoun},"
        if companions
        else "alone"
    )
    if not is_minimal:
        return "a smaller set could not be judged"
    rest = {
        "pass": f"all others without {pronoun} pass",
        "none": "nothing else changes",
        "other culprits": "all changes without the culprits pass",
        "not judged": f"what the others do without {pronoun} is not known",
    }[others]
    return f"{with_whom} {alone}, {rest}"


def constraint_lines(culprits: Sequence[Culprit]) -> tuple[str, ...]:
    """Return constraints file lines that exclude the culprits.

    A line pins the current version, by its archives if the candidate's is equal; if there is none, it excludes the
    candidate's version. A removed package has none.
    """
    lines = _constraints([change for culprit in culprits for change in culprit.changes])
    return tuple(lines[name] for name in sorted(lines))


def _constraints(changes: Sequence[PackageChange]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for change in changes:
        if change.current is not None and change.candidate is not None and change.current.version:
            pin = change.current
            is_rebuilt = pin.version == change.candidate.version
            lines[change.package] = pin.requirement if is_rebuilt else f"{pin.name}=={pin.version}"
        elif change.candidate is not None:
            lines[change.package] = f"{change.package}!={change.candidate.version or '*'}"
    return lines
