"""A command's files on the way to a gate's worker, which has none of its author's paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from plumbline.night.prepare import prepare
from plumbline.schema.command import CommandWorkload
from plumbline.schema.errors import CorruptDataError
from plumbline.schema.suite import Suite, read_suite
from plumbline.upgrade.shipped import with_digests, with_files

SUITE = """
name = "mine"
store = "file://{folder}/central"
reference = "here"

[workloads.mine]
command = "python src/train.py"
files = ["src/train.py"]

[platforms.here]
work_pool = "here"
data = "file://{folder}/data"
outbox = "file://{folder}/outbox"
"""


@pytest.fixture
def ordered(tmp_path: Path) -> Suite:
    """Return the suite as an order has it, after the author's files are gone."""
    author = tmp_path / "author"
    (author / "src").mkdir(parents=True)
    (author / "src/train.py").write_text("print('trains')")
    (author / "suite.toml").write_text(SUITE.format(folder=tmp_path))
    suite = read_suite(author / "suite.toml")
    spec = prepare(suite, tmp_path / "build", lambda _: None)["mine"]
    (author / "src/train.py").unlink()
    return with_digests(suite, "mine", spec)


def test_a_gates_worker_reads_the_published_files(ordered: Suite, tmp_path: Path) -> None:
    assert "author" not in ordered.model_dump_json()
    with with_files(ordered, "mine", "here", tmp_path / "cache") as suite:
        command = suite.workloads["mine"]
        assert isinstance(command, CommandWorkload)
        assert {name: Path(path).read_text() for name, path in command.files.items()} == {
            "src/train.py": "print('trains')"
        }


def test_a_file_that_was_replaced_in_the_store_is_refused(ordered: Suite, tmp_path: Path) -> None:
    (published,) = (tmp_path / "data/files").iterdir()
    published.write_text("print('other')!")
    with pytest.raises(CorruptDataError), with_files(ordered, "mine", "here", tmp_path / "cache"):
        pass
