"""Rows that differ are named by the user's own file, line, text and classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plumbline.cli.main import main
from plumbline.data.datasets import build_dataset, publish
from plumbline.data.stores import Store, open_store
from plumbline.judge import compare
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.judging import judge_harvest
from plumbline.night.rounds.plan import MAIN, Assignment, Round
from plumbline.night.rounds.row_places import placed_results, placed_rows, row_lines
from plumbline.records import LoadedRecord
from plumbline.schema.digest import digest_bytes
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.manifest import Manifest
from plumbline.schema.record import RECORD_NAME
from plumbline.schema.suite import DatasetSource
from tests.record_parts import write_arrays
from tests.said import said
from tests.unit.judge.conftest import EVALUATION_ROWS, ROWS, Plan, make_record
from tests.unit.report.test_site import outlined
from tests.unit.suites import suite_of

CLASSES = ("bad", "good")


@pytest.fixture
def published(tmp_path: Path) -> tuple[Store, Manifest]:
    """Publish a user's CSV whose texts would be dangerous in a page or on a terminal."""
    rows = [
        f"<b>text\u202e {row}</b> {'long ' * 60}\x1b[31m,{CLASSES[row % 2]}" for row in range(ROWS + EVALUATION_ROWS)
    ]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    source = DatasetSource(path=str(tmp_path / "reviews.csv"), vocab_size=100, evaluation_rows=8)
    manifest = build_dataset(source, "unit", "sequence-classification", tmp_path / "out")
    (tmp_path / "store").mkdir()
    store = open_store(f"file://{tmp_path}/store")
    publish(tmp_path / "out", store)
    return store, manifest


def _label(number: int) -> int:
    return int.from_bytes(bytes.fromhex(digest_bytes(number.to_bytes(8, "little", signed=True)))[:8], "little")


def _record(manifest: Manifest, plan: Plan | None = None) -> LoadedRecord:
    """Return a record of this dataset, with label values as the trainer writes them."""
    made = make_record(plan or Plan())
    data = made.record.spec.data.replace(manifest_sha256=manifest.digest, class_names=CLASSES)
    spec = made.record.spec.replace(data=data.model_dump())
    rows: dict[str, Any] = dict(made.arrays["rows"])
    rows["label"] = np.array([_label(number) for number in rows["label"].tolist()], np.uint64)
    record = made.record.replace(spec=spec.model_dump(), spec_sha256=spec.digest)
    return LoadedRecord(record, made.folder, made.arrays | {"rows": rows})


def test_a_changed_label_has_its_classes_file_line_and_text(published: tuple[Store, Manifest]) -> None:
    store, manifest = published
    plan = Plan()
    plan.labels[9] = 1 - plan.labels[9]
    reference, candidate = _record(manifest), _record(manifest, plan)
    judgement = placed_rows(compare(reference, candidate), reference, candidate, store)
    (cause,) = judgement.causes
    assert (cause.code, said(cause.evidence)[2]) == ("data.labels", "row 9: good → bad")
    place = said(cause.evidence)[3]
    assert place.startswith("row 9 is reviews.csv, line ")
    assert "<b>text\ufffd " in place
    assert len(place) < 180
    assert "\x1b" not in place


def test_a_store_of_a_different_dataset_names_no_row(published: tuple[Store, Manifest]) -> None:
    store, _ = published
    with pytest.raises(InvalidInputError, match="is a different dataset than the record's"):
        row_lines(store, make_record(), [1])


def test_compare_names_rows_of_a_store_on_the_command_line(
    published: tuple[Store, Manifest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, manifest = published
    plan = Plan()
    plan.labels[9] = 1 - plan.labels[9]
    folders = []
    for name, record in (("one", _record(manifest)), ("two", _record(manifest, plan))):
        parts = write_arrays(tmp_path / name, {key: value for key, value in record.arrays.items() if key != "capture"})
        (tmp_path / name / RECORD_NAME).write_text(record.record.replace(parts=parts).model_dump_json())
        folders.append(str(tmp_path / name))
    assert main(["compare", *folders, "--data", store.url]) == 1
    assert "row 9 is reviews.csv, line " in capsys.readouterr().out
    page = tmp_path / "page.html"
    assert main(["compare", *folders, "--data", store.url, "--html", str(page)]) == 1
    html = page.read_text(encoding="utf-8")
    for words in ("row 9: good → bad", "row 9 is reviews.csv, line ", "data.labels", "Differences of the env"):
        assert words in html
    assert "1 passed" not in html  # the reference is judged by nobody
    assert "img" not in outlined(html).tags
    capsys.readouterr()
    assert main(["compare", *folders, "--html", str(tmp_path)]) == 2
    assert "--html: is a folder" in capsys.readouterr().err
    assert main(["compare", *folders]) == 1
    assert "row 9: good → bad" in capsys.readouterr().out
    assert main(["compare", *folders, "--data", f"file://{tmp_path}/none"]) == 1
    assert "rows are not named by file and line: " in capsys.readouterr().err


@pytest.mark.parametrize("url", ["the store", "file:///nowhere"])
def test_a_round_names_rows_and_loses_nothing_where_it_cannot(published: tuple[Store, Manifest], url: str) -> None:
    store, manifest = published
    url = store.url if url == "the store" else url
    plan = Plan()
    plan.labels[9] = 1 - plan.labels[9]
    suite = suite_of("aws", "azure", workloads=("unit",), platform={"data": url}, recipe={"data": "unit"})
    made = {"aws": _record(manifest), "azure": _record(manifest, plan)}
    round_ = Round("20261122-020000-abc", suite, {"unit": made["aws"].record.spec}, "secret")
    gathered = GatheredRecords({Assignment(name, "unit", MAIN): record for name, record in made.items()}, {})
    results = judge_harvest(round_, gathered, {}, {}, {})
    placed = placed_results(round_, results, gathered, {})
    (cause,) = placed["unit"]["azure"].causes
    assert "row 9: good → bad" in said(cause.evidence)
    assert any(line.startswith("row 9 is reviews.csv, line ") for line in said(cause.evidence)) == (url == store.url)
    assert placed["unit"]["aws"] == results["unit"]["aws"]
