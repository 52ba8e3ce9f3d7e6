"""Every number, text and list of a record has a bound, and a malformed record costs little."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from plumbline.schema.base import PlainJson, read_model
from plumbline.schema.errors import InvalidInputError
from plumbline.schema.fingerprint import Fingerprint
from plumbline.schema.record import RunRecord, parse_record
from plumbline.schema.verdict import Finding
from tests.unit.judge.conftest import make_record
from tests.unit.judge.made_records import whole


def parts_of(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every type in a JSON schema, with its place."""
    yield path, schema
    for key in ("anyOf", "prefixItems"):
        for place, item in enumerate(schema.get(key, ())):
            yield from parts_of(item, f"{path}/{key}{place}")
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(key), dict):
            yield from parts_of(schema[key], f"{path}/{key}")
    for key in ("properties", "$defs"):
        for name, item in schema.get(key, {}).items():
            yield from parts_of(item, f"{path}/{name}")


BOUNDS = {
    "integer": ({"maximum", "exclusiveMaximum"}, {"minimum", "exclusiveMinimum"}),
    "number": ({"maximum", "exclusiveMaximum"}, {"minimum", "exclusiveMinimum"}),
    "string": ({"maxLength", "pattern", "format"},),
    "array": ({"maxItems", "prefixItems"},),
}


def test_every_value_of_a_record_has_a_bound() -> None:
    schema = RunRecord.model_json_schema()
    free = [
        (path, part)
        for path, part in parts_of(schema)
        for needed in BOUNDS.get(part.get("type", ""), ())
        if not needed & part.keys() and not {"const", "enum"} & part.keys()
    ]
    free += [
        (path, part)
        for path, part in parts_of(schema)
        if isinstance(part.get("additionalProperties"), dict) and "maxProperties" not in part
    ]
    # `safe_key` bounds a key, which the JSON schema does not show.
    free = [(path, part) for path, part in free if path.rpartition("/")[2] not in ("key", "weights_key")]
    free = [(path, part) for path, part in free if "/source/" not in path]
    assert free == []


def lists(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every list in a record, those of a first element only."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from lists(item, (*path, key))
    elif isinstance(value, list):
        if not isinstance(path[-1], int):
            yield path
        yield from (found for item in value[:1] for found in lists(item, (*path, 0)))


def errors_of(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> int:
    copy = json.loads(json.dumps(content))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError) as caught:
        RunRecord.model_validate_json(json.dumps(copy))
    return caught.value.error_count()


def test_the_first_wrong_element_of_a_list_ends_its_reading() -> None:
    """Pydantic keeps an error of a kilobyte for each element: 300,000 wrong losses took 316 MiB."""
    for made in (whole(), make_record(has_windows=True, has_portable_sketches=True)):
        content = json.loads(made.record.model_dump_json())
        for path in lists(content):
            assert errors_of(content, path, [[]] * 9) <= errors_of(content, path, [[]]), path
    assert ("evidence", "learn", "losses") in list(lists(json.loads(whole().record.model_dump_json())))


def test_a_document_with_too_many_values_or_keys_is_not_parsed() -> None:
    with pytest.raises(InvalidInputError, match="more than the 4000000 values allowed"):
        read_model(RunRecord, b"[" + b"0," * 4_000_000 + b"0]")
    keys = {f"k{number}": 0 for number in range(20_001)}
    with pytest.raises(InvalidInputError, match="20001 keys"):
        read_model(RunRecord, json.dumps(keys).encode())


def test_the_keys_of_the_same_bytes_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller reads each record of a night several times."""
    num_parsed, loads = 0, json.loads

    def counted(data: bytes, **how: Any) -> Any:
        nonlocal num_parsed
        num_parsed += 1
        return loads(data, **how)

    monkeypatch.setattr(json, "loads", counted)
    data = make_record().record.replace(record_id="read-twice").model_dump_json().encode()
    assert parse_record(data) == parse_record(data)
    assert num_parsed == 1
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="record_id: is given twice"):
            parse_record(data.replace(b"{", b'{"record_id": "read-once", ', 1))
    assert num_parsed == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 10**400, 2**60, [{"a": float("nan")}]])
def test_settings_that_have_no_digest_are_refused(value: Any) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(PlainJson).validate_json(json.dumps(value))
    plain = {"eps": 1e-12, "layers": [1, 2, {"act": "gelu"}], "tied": None, "bias": False, "big": 10**15}
    assert TypeAdapter(PlainJson).validate_python(plain) == plain


def test_a_finding_keeps_a_ratio_that_overflowed_as_missing() -> None:
    finding = Finding(check="speed.throughput", outcome="drift", observed=-float("inf"), limit=float("nan"))
    assert (finding.observed, finding.limit) == (None, None)


def test_a_fingerprint_of_a_real_machine_has_room_and_one_of_megabytes_does_not() -> None:
    made = whole().record.fingerprint
    packages = {f"nvidia-cublas-package-{number}": "12.8.4.1.post3+cu128" for number in range(1500)}
    paths = ":".join(f"/nix/store/0c5rd1k4l2n8w9x7v3b6m1q5z0j4h8-python3.12-package-{n}/lib" for n in range(400))
    content = made.to_json() | {"packages": packages, "environment": {"PYTHONPATH": paths}}
    assert len(Fingerprint.model_validate(content).packages) == 1500
    for changes in ({"hostname": "h" * 501}, {"environment": {"PYTHONPATH": paths * 10}}):
        with pytest.raises(ValidationError):
            Fingerprint.model_validate(content | changes)
