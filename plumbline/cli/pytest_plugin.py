"""pytest plugin: `def test_training(plumbline_record): ...` judges the training that the test records.

pytest loads it in every session of an environment: what judges is imported once a test asks for the fixture.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from plumbline.records import LoadedRecord
    from plumbline.records.accepted import Accepted
    from plumbline.schema.verdict import Judgement

ACCEPTED = "__plumbline__"
"""Folder of the accepted records, beside the module of a test."""
_MAX_NAME = 100
_PROPERTY = "plumbline"


class _Recording(NamedTuple):
    """What a test records, and what it is compared with."""

    folder: Path
    file: Path
    """The accepted record."""
    accepted: Accepted | None


_RECORDING = pytest.StashKey[_Recording]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes accepted records."""
    text = "write the record of each training that a test records as its accepted one"
    parser.getgroup("plumbline").addoption("--plumbline-accept", action="store_true", help=text)


@pytest.fixture
def plumbline_record(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Folder for a training's record: `capture(plumbline_record, model, optimizer, steps=20)`.

    It is also in PLUMBLINE_RECORD, for a script that the test starts. Behind the test's body the record is compared
    with the accepted one in `__plumbline__/` beside the test, or judged by itself where none is accepted.
    """
    from plumbline.records.accepted import read_accepted
    from plumbline.schema.errors import InvalidInputError

    folder, file = tmp_path_factory.mktemp("plumbline_record"), _accepted_file(request.node)
    is_read, problem = file.exists() and not request.config.getoption("plumbline_accept"), ""
    try:
        accepted = read_accepted(file) if is_read else None
    except InvalidInputError as error:
        problem = f"accepted record: {error}"
    if problem:  # outside of the handler, whose error pytest would print, too
        pytest.fail(problem, pytrace=False)
    monkeypatch.setenv("PLUMBLINE_RECORD", str(folder))
    request.node.stash[_RECORDING] = _Recording(folder, file, accepted)
    return folder


def _accepted_file(item: pytest.Item) -> Path:
    """Return the file of a test, parameters included; a name that no file can have gets a digest instead."""
    from plumbline.schema.digest import digest_bytes

    name = item.nodeid.partition("::")[2]
    plain = re.sub(r"[^\w\[\]=.+-]+", "_", name.replace("::", "."), flags=re.ASCII)[:_MAX_NAME]
    suffix = "" if plain == name.replace("::", ".") else f"-{digest_bytes(name.encode())[:8]}"
    return item.path.parent / ACCEPTED / item.path.stem / f"{plain}{suffix}.json"


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Judge the record behind a body that passed: what this raises is a failure of the test itself."""
    if (recording := item.stash.get(_RECORDING, None)) is None:
        return
    from plumbline.records import load_record
    from plumbline.schema.errors import InvalidInputError

    try:
        if not any(recording.folder.iterdir()):
            why, hint = "the test wrote no record", "capture(plumbline_record, model, optimizer, steps=20)"
            raise InvalidInputError(why, hint=hint)  # noqa: TRY301 - fails as an unreadable record does
        record = load_record(recording.folder)
        failure, said = _judged(recording, record, is_accepting=item.config.getoption("plumbline_accept"))
    except (InvalidInputError, OSError) as error:
        failure, said = str(error), ""
    if failure:
        pytest.fail(failure, pytrace=False)
    item.user_properties.append((_PROPERTY, said))


def _judged(recording: _Recording, record: LoadedRecord, *, is_accepting: bool) -> tuple[str, str]:
    """Return why the test fails, or "" and a line for the summary."""
    from plumbline.judge import compare
    from plumbline.judge.alone import judge_alone
    from plumbline.report.sentences import clean, note_line

    alone, accepted = judge_alone(record), recording.accepted
    is_comparable = accepted is not None and alone.verdict != "invalid"
    beside = compare(accepted.loaded, accepted.beside(record)) if accepted is not None and is_comparable else None
    # A training of which nothing is proven can be accepted, and be compared with an accepted one.
    is_alone_enough = alone.verdict == "inconclusive" and (is_accepting or beside is not None)
    sides = {"by itself": None if is_alone_enough else alone, "beside the accepted record": beside}
    failed = {name: each for name, each in sides.items() if each is not None and each.verdict != "pass"}
    if failed:
        return _failure(recording, failed), ""
    proven = "; ".join(clean(finding.detail) for finding in alone.findings)
    notes = "; ".join(clean(note_line(note)) for note in (beside or alone).notes)
    if is_accepting:
        return "", f"written as accepted{_unknown(_write(record, recording.file))}: {proven}; {notes}"
    if accepted is not None:
        return "", f"as the accepted record{_unknown(accepted)}: {notes}"
    return "", f"no accepted record, judged by itself (hint: pytest --plumbline-accept): {proven}; {notes}"


def _failure(recording: _Recording, failed: Mapping[str, Judgement]) -> str:
    """Return what differs, the first line first, and what to do where that is intended."""
    from plumbline.report.terminal import judgement_lines

    texts = [(name, judgement_lines(each)) for name, each in failed.items()]
    heads = [f"{head} ({name})" for name, (head, *_) in texts]
    lines = [*heads, *dict.fromkeys(line for _, (_, *more) in texts for line in more if line)]
    lines += [f"record: {recording.folder}"]
    if recording.accepted is not None:
        lines += [f"accepted record: {recording.file} (hint: if the change is intended, pytest --plumbline-accept)"]
    return "\n".join(lines)


def _write(record: LoadedRecord, file: Path) -> Accepted:
    """Write a record as the accepted one, whole or not at all."""
    from plumbline.records.accepted import accepted_text

    accepted, text = accepted_text(record)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="ascii", newline="\n")
    part.replace(file)
    return accepted


def _unknown(accepted: Accepted) -> str:
    """Return what a large record left out, in brackets."""
    from plumbline.records.accepted import LEFT_OUT

    names = "; ".join(LEFT_OUT[group] for group in accepted.left_out)
    return f" (unknown, as its record is large: {names})" if names else ""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was judged, and beside what: a pass without an accepted record is never silent."""
    reports = [each for some in terminalreporter.stats.values() for each in some if getattr(each, "when", "") == "call"]
    lines = [f"{each.nodeid}: {text}" for each in reports for name, text in each.user_properties if name == _PROPERTY]
    if lines:
        terminalreporter.section("plumbline")
    for line in lines:
        terminalreporter.write_line(line)
