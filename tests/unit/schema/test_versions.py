"""Orders and records of a different version of the product."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline import __version__
from plumbline.night.dispatch import TrainingOrder
from plumbline.schema.errors import ConfigurationError, ExitCode, InvalidInputError
from plumbline.schema.record import RECORD_NAME, parse_record
from plumbline.schema.versions import validate_order
from tests.contract.records import make_record


@pytest.fixture
def content(tmp_path: Path) -> dict[str, Any]:
    """Return the JSON of a record."""
    folder = make_record(tmp_path / "made", "record-1", "aws")
    content: dict[str, Any] = json.loads((folder / RECORD_NAME).read_bytes())
    return content


def written_by(content: dict[str, Any], version: str) -> bytes:
    content["fingerprint"]["plumbline"] = version
    return json.dumps(content).encode()


def order(content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "platform": "aws", "data": "file:///d", "outbox": "file:///o", "record_id": "record-1", "round_id": "round-1",
        "spec": content["spec"], "run_seconds": 60, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("version", "more", "older"),
    [("0.2.0", {"ab": {"new": 1}, "unheard": True}, "this worker"), ("0.0.9", {}, "the controller")],
)
def test_an_order_of_a_different_version_names_both_before_any_key(
    content: dict[str, Any], version: str, more: dict[str, Any], older: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        validate_order(TrainingOrder, order(content, version=version, **more))
    assert str(refused.value) == (
        f"order: comes from plumbline {version} of the controller, this worker has {__version__}"
        f" (hint: update plumbline on {older})"
    )
    assert refused.value.exit_code is ExitCode.USAGE


def test_an_order_of_the_same_minor_version_is_read(content: dict[str, Any]) -> None:
    for more in ({}, {"version": __version__}, {"version": __version__.rpartition(".")[0] + ".99"}):
        assert validate_order(TrainingOrder, order(content, **more)).record_id == "record-1"
    assert order(content)["spec"]
    assert validate_order(TrainingOrder, order(content)).to_json()["version"] == __version__


def test_a_malformed_order_is_one_line(content: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^order: unheard: unknown key \(hint: install the same version"):
        validate_order(TrainingOrder, order(content, unheard=1, version=__version__))


@pytest.mark.parametrize("version", ["0.2.0", "0.1.1", "0.0.9"])
def test_a_record_of_a_different_release_is_read(content: dict[str, Any], version: str) -> None:
    content["unheard"] = {"a": [1]}
    content["evidence"]["unheard"] = 1
    content["fingerprint"]["cpu"]["unheard"] = "x"
    assert parse_record(written_by(content, version)).record_id == "record-1"


@pytest.mark.parametrize(
    ("version", "hint"),
    [
        ("1.0.0", "update plumbline here"),
        ("0.2.0", "update plumbline here"),
        ("0.1.1", "update plumbline here"),
        ("0.0.9", "write it"),
    ],
)
def test_a_record_that_cannot_be_read_across_versions_names_both(
    content: dict[str, Any], version: str, hint: str
) -> None:
    content["spec"]["unheard"] = 1  # a training with a setting that this version does not know
    with pytest.raises(InvalidInputError) as refused:
        parse_record(written_by(content, version), where="outbox")
    line = str(refused.value)
    assert line.startswith(f"outbox: spec.unheard: unknown key: written by plumbline {version}, here is {__version__}")
    assert hint in line


def test_a_duplicate_key_is_refused_of_any_version(content: dict[str, Any]) -> None:
    data = written_by({**content, "unheard": 1}, "0.2.0").replace(b'{"', b'{"attempt": 0, "', 1)
    with pytest.raises(InvalidInputError, match="attempt: is given twice"):
        parse_record(data)


@pytest.mark.parametrize("version", [__version__, "dev", ""])
def test_an_unknown_key_of_this_version_is_refused_as_ever(content: dict[str, Any], version: str) -> None:
    content["unheard"] = 1
    with pytest.raises(InvalidInputError, match=r"unheard: unknown key$"):
        parse_record(written_by(content, version))
