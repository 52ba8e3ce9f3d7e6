"""Baselines: accepted, rejected and bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plumbline.cli.main import main
from plumbline.data.stores import open_store
from plumbline.night.baseline import MAX_ACCEPTED, BaselineBook, DecisionNote
from plumbline.night.central import CentralStore
from plumbline.records import load_record
from plumbline.schema.digest import canonical_json
from plumbline.schema.errors import ConfigurationError, InvalidInputError
from plumbline.schema.record import RECORD_NAME, RunRecord
from plumbline.schema.verdict import RoundVerdict
from tests.unit.judge.conftest import make_record

BASE: RunRecord = make_record().record


def record(number: int, **changes: Any) -> RunRecord:
    return BASE.replace(record_id=f"r{number:03d}", **changes)


@pytest.fixture
def central(tmp_path: Path) -> CentralStore:
    return CentralStore(open_store(f"file://{tmp_path / 'central'}"))


def test_the_record_accepted_last_is_current_until_it_is_rejected(central: CentralStore) -> None:
    book = BaselineBook(central)
    assert book.read(BASE.spec_sha256, "left") is None
    book.accept(record(1))
    book.accept(record(2))
    assert current(central) == "r002"
    assert book.reject(BASE.spec_sha256, "left").current == "r001"
    book.reject(BASE.spec_sha256, "left", "r001")
    assert book.read(BASE.spec_sha256, "left") is None
    assert book.list() == ((), {})


def test_accepting_twice_counts_once_and_the_list_is_bounded(central: CentralStore) -> None:
    book = BaselineBook(central)
    for number in [*range(MAX_ACCEPTED + 5), 10]:
        book.accept(record(number))
    result = book.read(BASE.spec_sha256, "left")
    assert result is not None
    names = [item.record_id for item in result.records]
    assert len(names) == len(set(names)) == MAX_ACCEPTED
    assert result.current == "r010"


def test_a_record_that_nothing_can_be_held_against_is_refused(central: CentralStore) -> None:
    book = BaselineBook(central)
    failed = record(1, exit={"status": "failed", "code": "non-finite", "message": "the loss is nan"})
    with pytest.raises(InvalidInputError, match="the loss is nan"):
        book.accept(failed)
    with pytest.raises(InvalidInputError, match="no evidence of probe"):
        book.accept(record(1, evidence=BASE.evidence.replace(probe=None).to_json()))
    with pytest.raises(ConfigurationError):
        book.reject(BASE.spec_sha256, "left")


def current(central: CentralStore) -> str | None:
    """Return the record that is the baseline now; `None` without one."""
    found = BaselineBook(central).read(BASE.spec_sha256, "left")
    return found and found.current


def suite_file(folder: Path) -> Path:
    path = folder / "suite.toml"
    path.write_text(
        f"""
name = "unit"
store = "file://{folder / "central"}"
reference = "left"
[workloads.unit]
model = "tiny"
data = "unit"
seed = 1
batch_size = 4
[workloads.unit.probe]
[platforms.left]
work_pool = "left"
data = "file://{folder}/data"
outbox = "file://{folder}/outbox"
"""
    )
    return path


@pytest.fixture
def suite(tmp_path: Path) -> str:
    return str(suite_file(tmp_path))


def _round(
    central: CentralStore, tmp_path: Path, number: int, verdict: str = "pass", rate: float | None = None
) -> None:
    folder = tmp_path / f"record{number}"
    folder.mkdir(exist_ok=True)
    (folder / RECORD_NAME).write_bytes(canonical_json(record(number).to_json()))
    central.put_record(load_record(folder))
    platforms = {
        "left": {"verdict": verdict, "records": [f"r{number:03d}"], "samples_per_second": rate or 100.0 + number}
    }
    central.put_round(RoundVerdict(round=f"round-{number:03d}", suite="unit", verdict=verdict, platforms=platforms))  # type: ignore[arg-type]


def test_the_last_round_is_accepted_shown_and_rejected_on_the_command_line(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    assert main(["baseline", "accept", suite]) == 2
    assert "has no round yet" in capsys.readouterr().err
    _round(central, tmp_path, 1)
    _round(central, tmp_path, 2)
    assert main(["baseline", "accept", suite, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["baselines"][0]["records"][0]["record_id"] == "r002"
    assert main(["baseline", "accept", suite, "--round", "round-001"]) == 0
    assert "r001  ← current" in capsys.readouterr().out
    assert main(["baseline", "reject", suite, "--record", "r001"]) == 0
    assert main(["baseline", "show", suite]) == 0
    shown = capsys.readouterr().out
    assert "r002" in shown
    assert main(["baseline", "show", suite, "--platform", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_invalid_round_cannot_be_approved(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    _round(central, tmp_path, 1, "invalid")
    assert main(["baseline", "accept", suite]) == 3
    assert "cannot be approved" in capsys.readouterr().err


def test_history_and_calibration_over_rounds(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    assert main(["history", suite]) == 0
    assert "no round yet" in capsys.readouterr().out
    assert main(["baseline", "calibrate", suite]) == 2
    for number in range(4):
        _round(central, tmp_path, number)
    capsys.readouterr()
    assert main(["history", suite, "--json", "--last", "3"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["round"] for item in document["platforms"]["left"]["nights"]] == [
        "round-001",
        "round-002",
        "round-003",
    ]
    assert main(["baseline", "calibrate", suite, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["platforms"]["left"]
    assert result["noise"]["runs"] == 4
    assert 0.01 < result["throughput_drop"] < 0.2
    assert main(["baseline", "calibrate", suite, "--write"]) == 0
    assert "throughput_drop = 0." in Path(suite).read_text()


def test_no_limit_is_written_that_passes_the_loss_of_a_quarter(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    """Five noisy nights wrote `throughput_drop = 0.9939` without a word."""
    before = Path(suite).read_text()
    for number, rate in enumerate((100, 170, 60, 220, 130)):
        _round(central, tmp_path, number, rate=rate)
    assert main(["baseline", "calibrate", suite, "--write"]) == 3
    out, err = capsys.readouterr()
    assert Path(suite).read_text() == before
    assert "allow no limit up to 25%: train on a quieter machine" in out
    assert f"plumbline: {suite}: platforms.left: nothing is written for it (hint: 5 nights that vary by" in err
    assert main(["baseline", "calibrate", suite, "--write", "--json"]) == 3
    assert "quieter machine" in json.loads(capsys.readouterr().out)["platforms"]["left"]["problem"]
    for number, rate in enumerate((104, 96, 107, 95, 100)):
        _round(central, tmp_path, number, rate=rate)
    assert main(["baseline", "calibrate", suite]) == 0
    assert "about 12 nights of this noise are needed" in capsys.readouterr().out


def test_a_round_that_cannot_be_read_costs_no_command_the_others(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    for number in range(4):
        _round(central, tmp_path, number)
    central.put_text("rounds/unit/round-001/round.json", '{"round": "round-001", "of another": "version"}')
    central.put_text("rounds/unit/round-008/round.json", "cut off {")

    def answer_of(*command: str) -> tuple[Any, list[str]]:
        assert main([*command, suite, "--json"]) == 0
        out, err = capsys.readouterr()
        assert "/rounds/unit/round-008/round.json: " in err
        return json.loads(out), [line.partition(" is skipped: ")[0] for line in err.splitlines()]

    both = [f"plumbline: the round {name}" for name in ("round-008", "round-001")]
    history, left_out = answer_of("history")
    nights = [item["round"] for item in history["platforms"]["left"]["nights"]]
    assert (nights, left_out) == (["round-000", "round-002", "round-003"], both)
    calibrated, left_out = answer_of("baseline", "calibrate")
    assert (calibrated["platforms"]["left"]["noise"]["runs"], left_out) == (3, both)
    # The last round, and the one that is asked for by its name, are not replaced by an older one.
    assert main(["baseline", "accept", suite]) == main(["baseline", "accept", suite, "--round", "round-008"]) == 4
    assert main(["baseline", "accept", suite, "--round", "round-003"]) == 0


def _told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().err.strip().splitlines()


def test_a_damaged_baseline_is_named_and_is_not_replaced_in_silence(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    _round(central, tmp_path, 1)
    assert main(["baseline", "accept", suite]) == 0
    key = f"baselines/{BASE.spec_sha256}/left.json"
    central.put_text(key, "cut off {")
    for action in ("list", "show"):
        capsys.readouterr()
        assert main(["baseline", action, suite]) == 4
        out, err = capsys.readouterr()
        assert out == ""
        assert f"/{key}: " in err
        assert "`plumbline baseline accept SUITE` replaces it and its accepted records" in err
    assert main(["baseline", "list", suite, "--json"]) == 4
    assert list(json.loads(capsys.readouterr().out)["damaged"]) == [key]
    assert main(["baseline", "reject", suite]) == 4
    assert "a baseline is damaged" in _told(capsys)[0]
    assert main(["baseline", "accept", suite]) == 0
    assert f"replaces a damaged baseline and its accepted records: {central.store.url}/{key}" in _told(capsys)[0]
    assert main(["baseline", "list", suite]) == 0
    assert _told(capsys) == []


def test_a_damaged_baseline_hides_no_other(
    central: CentralStore, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    BaselineBook(central).accept(record(1))
    central.put_text(f"baselines/{'0' * 64}/right.json", "{}")
    assert main(["baseline", "list", suite]) == 4
    out, err = capsys.readouterr()
    assert "r001  ← current" in out
    assert "/right.json: " in err
    # Only what was asked for counts.
    assert main(["baseline", "show", suite, "--platform", "left"]) == 0


def test_the_current_record_stands_in_the_json_too(
    central: CentralStore, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    for number in (2, 1):
        BaselineBook(central).accept(record(number))
    assert main(["baseline", "list", suite, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["baselines"][0]["current"] == "r001"


@pytest.mark.parametrize(
    ("name", "message"),
    [("nope", "the round 'nope' does not exist"), ("../../x", "'../../x' is not a valid name of a round")],
)
def test_only_a_round_that_is_there_can_be_accepted(
    capsys: pytest.CaptureFixture[str], name: str, message: str, suite: str
) -> None:
    assert main(["baseline", "accept", suite, "--round", name]) == 2
    assert message in "".join(_told(capsys))


@pytest.mark.parametrize("last", ["0", "-3"])
def test_no_rounds_are_not_taken_for_one(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], last: str, suite: str
) -> None:
    for number in range(4):
        _round(central, tmp_path, number)
    for command in (["history"], ["baseline", "calibrate"]):
        assert main([*command, suite, "--last", last]) == 2
        assert _told(capsys) == [f"plumbline: --last: {last} is less than 1"]


def test_a_round_that_drifted_is_refused_unless_forced_with_a_reason(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    _round(central, tmp_path, 1)
    assert main(["baseline", "accept", suite]) == 0
    _round(central, tmp_path, 2, "drift")
    capsys.readouterr()
    assert main(["baseline", "accept", suite]) == 2
    assert "is drift, not a pass, and cannot be approved" in _told(capsys)[0]
    assert main(["baseline", "accept", suite, "--force"]) == 2
    assert "needs a reason" in _told(capsys)[0]
    assert current(central) == "r001"
    assert main(["baseline", "accept", suite, "--force", "--reason", "new kernel"]) == 0
    assert "against the last baseline r001" in capsys.readouterr().err
    assert main(["baseline", "log", suite, "--json"]) == 0
    log = json.loads(capsys.readouterr().out)["log"]
    assert [(entry["action"], entry["record_id"], entry["note"]["forced"]) for entry in log] == [
        ("accept", "r001", False),
        ("accept", "r002", True),
    ]
    assert (log[1]["note"]["why"], log[1]["note"]["suite"]) == ("new kernel", "unit")
    assert log[1]["note"]["who"]
    assert log[1]["note"]["when"]


def test_a_rejected_record_is_restored(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    _round(central, tmp_path, 1)
    assert main(["baseline", "accept", suite]) == 0
    assert main(["baseline", "reject", suite, "--reason", "a test"]) == 0
    assert BaselineBook(central).read(BASE.spec_sha256, "left") is None
    assert main(["baseline", "restore", suite]) == 0
    result = BaselineBook(central).read(BASE.spec_sha256, "left")
    assert result is not None
    assert (result.current, result.anchor and result.anchor.record_id) == ("r001", "r001")
    capsys.readouterr()
    assert main(["baseline", "restore", suite]) == 2
    assert "no such record was rejected" in _told(capsys)[0]


def test_reject_leaves_the_baselines_of_other_suites_alone(
    central: CentralStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], suite: str
) -> None:
    _round(central, tmp_path, 1)
    assert main(["baseline", "accept", suite]) == 0
    other = tmp_path / "other.toml"
    other.write_text(Path(suite).read_text().replace('name = "unit"', 'name = "other"'))
    capsys.readouterr()
    assert main(["baseline", "reject", str(other)]) == 2
    assert "this suite has not accepted such a record" in _told(capsys)[0]
    assert current(central) == "r001"


def test_the_anchor_stays_when_the_list_is_full_and_changes_only_by_decision(central: CentralStore) -> None:
    book = BaselineBook(central)
    for number in range(MAX_ACCEPTED + 5):
        book.accept(record(number))
    result = book.read(BASE.spec_sha256, "left")
    assert result is not None
    assert result.anchor is not None
    assert result.anchor.record_id == "r000"
    moved = book.accept(record(60), DecisionNote(why="new machines", as_anchor=True))
    assert moved.anchor is not None
    assert moved.anchor.record_id == "r060"
