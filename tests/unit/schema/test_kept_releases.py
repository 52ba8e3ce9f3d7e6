"""Records of earlier releases are read and judged; a later release may add fields, and drop some that it announced.

The later release is a copy of the package with another version and other fields: it stands for a scratch branch.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli.main import main
from plumbline.schema.record import RECORD_NAME, RunRecord, parse_record

CODE = Path(__file__).parents[3]
KEPT = Path(__file__).parent / "kept"
RELEASES = sorted(path.name for path in KEPT.iterdir() if path.is_dir())
LATER = "0.2.0"
PAIRS = (("one", "two", "data.labels"), ("loop-one", "loop-two", "schedule"))
"""Records of the trainer and of a captured loop, with the cause that the second one shows."""
OF_THE_COPY = """
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
"""


def unpack(release: str, folder: Path) -> Path:
    for name in (name for pair in PAIRS for name in pair[:2]):
        with tarfile.open(KEPT / release / f"{name}.tar.xz") as packed:
            packed.extractall(folder, filter="data")
    return folder


@pytest.fixture(params=RELEASES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return unpack(request.param, tmp_path)


@pytest.mark.parametrize(("one", "two", "code"), PAIRS)
def test_a_release_s_records_are_judged(
    kept: Path, one: str, two: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(kept / one), str(kept / one)]) == 0
    assert main(["compare", str(kept / one), str(kept / two), "--json"]) == 1
    answer = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert [cause["code"] for cause in answer["causes"]] == [code]


def gone(given: Any, read: Any, place: str = "") -> list[str]:
    """Return the keys of a document that the schema no longer has."""
    if isinstance(given, dict) and isinstance(read, dict):
        missing = [f"{place}.{key}" for key in given if key not in read]
        return missing + [found for key in given.keys() & read.keys() for found in gone(given[key], read[key], key)]
    if isinstance(given, list) and isinstance(read, list):
        return [found for ours, theirs in zip(given, read, strict=True) for found in gone(ours, theirs, place)]
    return []


def test_a_field_that_left_is_named_in_the_changelog(kept: Path) -> None:
    for name in (name for pair in PAIRS for name in pair[:2]):
        path = kept / name / RECORD_NAME
        left = set(gone(json.loads(path.read_bytes()), json.loads(parse_record(path).model_dump_json())))
        named = re.findall(r"^- Removed: `([^`]+)`", (CODE / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
        assert {key.lstrip(".") for key in left} <= set(named)


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """Return a copy of the package as a later release: fields added, one deprecated, one gone that was deprecated."""
    package = tmp_path / "later" / "plumbline"
    ignored = shutil.ignore_patterns("__pycache__", "flows", "train")
    shutil.copytree(CODE / "plumbline", package, symlinks=True, ignore=ignored)
    init = package / "__init__.py"
    init.write_text(re.sub(r'(__version__ = )"[^"]*"', rf'\1"{LATER}"', init.read_text("utf-8")), "utf-8")
    for name, old, new in (
        ("record.py", "    started_at: Moment\n", '    started_at: Moment\n    weather: Label = "unknown"\n'),
        # Deprecated: still read, with a default, and written no more by the trainer.
        ("record.py", "    fingerprint: Fingerprint\n", "    fingerprint: Fingerprint = Field(deprecated=True)\n"),
        ("record.py", '    part: Label = ""\n    step: Step | None = None\n', "    step: Step | None = None\n"),
        ("fingerprint.py", "    hostname: Label\n", '    hostname: Label\n    rack: Label = ""\n'),
    ):  # fmt: skip
        path = package / "schema" / name
        text = path.read_text("utf-8")
        assert old in text, (name, old)
        path.write_text(text.replace(old, new, 1), "utf-8")
    return package.parent


def by_later(later: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", f"{OF_THE_COPY}\n{code}", str(later), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


JUDGE = "from plumbline.cli.main import main; sys.exit(main())"
WRITE = f"""
import json, pathlib
from plumbline.schema.record import parse_record
path = pathlib.Path(sys.argv[1]) / "{RECORD_NAME}"
content = json.loads(parse_record(path).model_dump_json())
content["fingerprint"]["plumbline"] = "{LATER}"
path.write_text(json.dumps(content))
"""


@pytest.mark.parametrize(("first", "second", "code"), PAIRS)
def test_a_later_release_with_other_fields_judges_these_records_and_its_own_are_judged_here(
    kept: Path, later: Path, first: str, second: str, code: str
) -> None:
    one, two = str(kept / first), str(kept / second)
    passed = by_later(later, JUDGE, "compare", one, one)
    assert (passed.returncode, passed.stderr) == (0, "")
    drifted = by_later(later, JUDGE, "compare", one, two)
    assert (drifted.returncode, code in drifted.stdout, drifted.stderr) == (1, True, "")
    written = by_later(later, WRITE, two)
    assert written.returncode == 0, written.stderr
    content = json.loads((kept / second / RECORD_NAME).read_bytes())
    assert {"weather"} <= content.keys() - RunRecord.model_fields.keys()
    assert (content["fingerprint"]["rack"], "part" in content["exit"]) == ("", False)
    assert main(["compare", two, two]) == 0
    assert main(["compare", one, two]) == 1
