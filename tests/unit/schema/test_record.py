"""Partial, altered or mismatched records are refused."""

from __future__ import annotations

import json

import pytest

from plumbline.schema.errors import CorruptDataError, InvalidInputError
from plumbline.schema.record import RECORD_NAME, read_record
from plumbline.schema.spec import read_spec, write_spec
from tests.contract.records import SPEC, make_record


@pytest.fixture
def folder(tmp_path):
    return make_record(tmp_path / "made", "r1", "aws")


def change(folder, **changes):
    path = folder / RECORD_NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_record_is_read(folder):
    assert read_record(folder).spec == SPEC


def test_a_folder_without_its_marker_is_partial(folder):
    (folder / RECORD_NAME).unlink()
    with pytest.raises(InvalidInputError, match="partial"):
        read_record(folder)


@pytest.mark.parametrize("damage", ["alter", "truncate", "remove"])
def test_a_part_of_other_bytes_is_corrupt(folder, damage):
    part = folder / "rows.parquet"
    content = {"alter": b"sixteen bytes no", "truncate": b"sixteen bytes", "remove": None}[damage]
    part.unlink()
    if content is not None:
        part.write_bytes(content)
    with pytest.raises(CorruptDataError, match=r"rows\.parquet"):
        read_record(folder)


def test_a_record_of_a_different_schema_version_is_refused_in_one_line(folder):
    change(folder, schema_version=2)
    with pytest.raises(InvalidInputError, match="schema_version") as refused:
        read_record(folder)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999"])
def test_a_record_with_a_number_that_is_none_is_refused(folder, value):
    path = folder / RECORD_NAME
    path.write_text(path.read_text().replace('"timings":{}', f'"timings":{{"probe":{value}}}'))
    with pytest.raises(InvalidInputError):
        read_record(folder)


def test_a_spec_whose_digest_is_not_its_own_is_refused(tmp_path):
    path = tmp_path / "spec.json"
    write_spec(SPEC, path)
    assert read_spec(path) == SPEC
    path.write_text(path.read_text().replace('"seed":7', '"seed":8'))
    with pytest.raises(InvalidInputError, match="plumbline spec"):
        read_spec(path)
