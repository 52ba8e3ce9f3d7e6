"""A new suite is valid, says what each choice means, and is never half written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from prefect.blocks import notifications
from prefect.blocks.core import Block

from plumbline.cli.init import BLOCK_TYPES
from plumbline.cli.main import main
from plumbline.local.rehearsal import rehearsal, to_toml
from plumbline.local.stack import is_local
from plumbline.night.doctor import examine_recipients
from plumbline.schema.command import CommandWorkload
from plumbline.schema.errors import ExitCode
from plumbline.schema.json_schema import suite_schema
from plumbline.schema.suite import read_suite
from plumbline.schema.verdict import CauseCode, Outcome
from tests.commands import run_plumbline

SUITES = Path(__file__).resolve().parents[3] / "deployments/suites"
REAL = (
    "--platform", "aws=s3://acme-aws", "--platform", "azure=az://acmedata/plumbline", "--platform", "gcp=gs://acme-gcp/ci",
    "--accelerator", "aws=NVIDIA A10G", "--store", "s3://acme-central", "--data", "rows.csv",
    "--cron", "0 2 * * *", "--timezone", "Europe/Berlin", "--alert", "slack-webhook/ml",
    "--report-url", "https://reports.acme.example/x",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("text,label\ngood,1\n")
    return tmp_path


def test_without_options_two_platforms_of_this_machine_train(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init"]) == 0
    suite = read_suite(folder / "suite.toml")
    assert is_local(suite)
    assert len(suite.platforms) == 2
    assert "plumbline run suite.toml" in capsys.readouterr().out


def test_the_pages_are_served_behind_the_first_round(capsys: pytest.CaptureFixture[str]) -> None:
    """Before it `plumbline store site` refuses the store, whose folder does not exist."""
    options = ["--alert", "apprise-url/me=ADDRESS", "--report-url", "http://127.0.0.1:8765/reports"]
    assert main(["init", *options, "--json"]) == 0
    _, *commands = json.loads(capsys.readouterr().out)["next"]
    assert [command.split()[1] for command in commands] == ["run", "store", "baseline"]
    typed = (SUITES.parents[1] / "README.md").read_text(encoding="utf-8").partition("\nplumbline init --data ")[2]
    assert sorted(commands, key=typed.index) == commands


def test_real_platforms_have_their_buckets_gpus_schedule_and_alert(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "real.toml", *REAL]) == 0
    suite = read_suite(folder / "real.toml")
    assert {name: (place.data, place.outbox, place.accelerator) for name, place in suite.platforms.items()} == {
        "aws": ("s3://acme-aws/data", "s3://acme-aws/outbox", "NVIDIA A10G"),
        "azure": ("az://acmedata/plumbline/data", "az://acmedata/plumbline/outbox", ""),
        "gcp": ("gs://acme-gcp/ci/data", "gs://acme-gcp/ci/outbox", ""),
    }
    assert suite.reference == "aws"
    assert suite.schedule is not None
    assert suite.alerts[0].block == "slack-webhook/ml"
    assert suite.report_url == "https://reports.acme.example/x"
    assert suite.datasets["rows"].path == "rows.csv"
    said = capsys.readouterr().out
    for command in ("aws s3 mb s3://acme-aws", "az storage container create", "gs://acme-gcp", "plumbline doctor"):
        assert command in said


OUTPUTS = {
    "store": "gs://acme-central/plumbline",
    "platforms": {
        "aws": {
            "work_pool": "aws-gpu", "data": "s3://acme-data/plumbline", "outbox": "s3://acme-outbox/plumbline",
            "accelerator": "NVIDIA A10G", "machines": "aws://us-east-1/acme-worker",
        },
        "azure": {
            "work_pool": "azure-gpu", "data": "az://acme/data/plumbline", "outbox": "az://acme/outbox/plumbline",
            "accelerator": "NVIDIA A100 80GB PCIe",
        },
    },
}  # fmt: skip


def test_a_command_trains_instead_of_a_bert_with_the_files_that_it_names(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("train.py", "config.yaml"):
        (folder / name).write_text("x")
    words = "python train.py --steps 200 --config other.yaml"
    assert main(["init", "--command", words, "--file", "config.yaml"]) == ExitCode.PASS
    suite = read_suite(folder / "suite.toml")
    mine = suite.workloads["mine"]
    assert isinstance(mine, CommandWorkload)
    assert (mine.command, list(mine.files)) == (words, ["train.py", "config.yaml"])
    assert not suite.datasets
    assert words in capsys.readouterr().out


def test_the_outputs_of_the_modules_become_platforms(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "outputs.json").write_text(json.dumps(OUTPUTS))
    options = ["--cron", "0 2 * * *", "--alert", "slack-webhook/ml=SLACK_WEBHOOK"]
    assert main(["init", "--from-outputs", "outputs.json", *options]) == 0
    suite = read_suite(folder / "suite.toml")
    places = {name: place.to_json() for name, place in suite.platforms.items()}
    assert {name: {key: place[key] for key in OUTPUTS["platforms"][name]} for name, place in places.items()} == OUTPUTS[
        "platforms"
    ]
    assert (suite.store, suite.reference) == ("gs://acme-central/plumbline", "aws")
    assert (suite.alerts[0].block, suite.alerts[0].address_from) == ("slack-webhook/ml", "SLACK_WEBHOOK")
    assert [result.what for result in examine_recipients(suite) if not result.well] == []
    # The buckets exist already.
    said = capsys.readouterr().out
    assert "s3 mb" not in said
    assert "plumbline deploy suite.toml --publish" in said


@pytest.mark.parametrize(
    ("outputs", "options", "word"),
    [
        ("{", [], "not JSON"),
        (json.dumps({"suite": {"value": OUTPUTS}}), [], "(hint: tofu output -json suite > outputs.json)"),
        (json.dumps({**OUTPUTS, "platforms": {}}), [], "platforms"),
        (json.dumps({**OUTPUTS, "platforms": {"aws": {"data": "s3://acme-data"}}}), [], "missing"),
        (json.dumps(OUTPUTS), ["--store", "s3://mine"], "--from-outputs"),
    ],
)
def test_wrong_outputs_are_one_line_and_leave_no_file(
    outputs: str, options: list[str], word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "outputs.json").write_text(outputs)
    assert main(["init", "bad.toml", "--from-outputs", "outputs.json", *options]) == 2
    said = capsys.readouterr().err.strip()
    assert word in said
    assert "\n" not in said
    assert not list(folder.glob("*bad*"))


def test_an_existing_suite_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "suite.toml").write_text("mine")
    assert main(["init"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (folder / "suite.toml").read_text() == "mine"
    assert main(["init", "--force"]) == 0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--platform", "aws"], "NAME=VALUE"),
        (["--platform", "aws=s3://a-a"], "--store"),
        (["--platform", "AWS=s3://a-a", "--store", "s3://b-b"], "reference"),
        (["--platform", "aws=s3://a-a", "--platform", "aws=s3://b-b", "--store", "s3://c-c"], "twice"),
        (["--platform", "aws=ftp://a-a", "--store", "s3://b-b"], "platforms.aws.data"),
        (["--accelerator", "aws=NVIDIA A10G"], "no --platform"),
        (["--cron", "@daily"], "five"),
        (["--cron", "0 2 * * *", "--timezone", "Mars"], "Mars"),
        (["--name", "two words"], "name"),
        (["--report-url", "reports"], "report_url"),
        (["--data", "gone.csv"], "gone.csv: path: no such file"),
        (["--data", "gone/*.csv"], "contains no data file"),
        (["--model", "bert-huge"], "bert-huge: model: is neither a size nor a checkpoint's folder"),
        (["--model", "smal"], "did you mean `small`?"),
        (["--alert", "slak-webhook/ml"], "did you mean `slack-webhook`?"),
        (["--data", "s4://acme/rows"], "s4://acme/rows: path: unsupported kind of URL"),
        (["--text-column", "body"], "--text-column: needs --data"),
        (["--label-column", "stars"], "--label-column: needs --data"),
        (["--timezone", "Europe/Berlin"], "--timezone: needs --cron"),
        (["--file", "rows.csv"], "--file: needs --command"),
        (["--command", "python train.py", "--model", "tiny"], "--model: a command has its own model"),
        (["--command", "python 'train.py"], "--command: cannot be split into words"),
        (["--command", "python", "--file", "gone.py"], "no such file: 'gone.py'"),
        (["--command", "python", "--file", "../rows.csv"], "workloads.mine.files"),
    ],
)
def test_a_wrong_choice_is_one_line_and_leaves_no_file(
    options: list[str], word: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "bad.toml", *options]) == 2
    said = capsys.readouterr().err.strip()
    assert word in said
    assert "\n" not in said
    assert not list(folder.glob("*bad*"))


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("a,b\ngood,1\n", [], "label: the column of the label is ambiguous (found: a, b)"),
        ("text,stars,kind\ngood,1,x\n", ["--label-column", "sters"], "sters: the column does not exist"),
        ("text,label\n", [], "contains no row"),
        ("", [], "the file is empty"),
    ],
)
def test_rows_that_no_run_could_read_are_refused_at_once(
    text: str, options: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.csv").write_text(text)
    assert main(["init", "--data", "mine.csv", *options]) == 4
    assert words in capsys.readouterr().err
    assert not (folder / "suite.toml").exists()


def test_each_file_of_a_folder_is_opened(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rows").mkdir()
    for name, text in (("a.csv", "text,label\ngood,1\n"), ("b.csv", ""), ("c.csv", "note,label\ngood,1\n")):
        (folder / "rows" / name).write_text(text)
    assert main(["init", "--data", "rows"]) == 4
    assert "c.csv: text: the column of the text is ambiguous" in capsys.readouterr().err
    (folder / "rows" / "c.csv").unlink()
    assert main(["init", "--data", "rows"]) == 0


def test_ctrl_d_keeps_the_defaults_of_all_further_questions(folder: Path) -> None:
    keyboard, terminal = os.openpty()
    os.write(keyboard, b"\x04")
    run_plumbline("init", stdin=terminal, cwd=folder)
    os.close(terminal)
    os.close(keyboard)
    assert is_local(read_suite(folder / "suite.toml"))


def test_a_store_s_rows_a_hub_s_model_and_a_team_s_own_recipient_are_not_asked_for() -> None:
    options = ("--data", "s3://acme/rows", "--model", "acme/bert@main", "--alert", "acme-siren/ml")
    assert main(["init", *options]) == 0


def test_every_recipient_that_init_knows_is_one_of_prefect() -> None:
    kinds = [kind for kind in vars(notifications).values() if isinstance(kind, type) and issubclass(kind, Block)]
    assert set(BLOCK_TYPES) <= {"apprise-url", *(kind.get_block_type_slug() for kind in kinds)}


def test_quotes_in_a_choice_stay_in_the_choice(folder: Path) -> None:
    (folder / 'a"b\n[platforms.x]\\.csv').write_text("text,label\ngood,1\n")
    assert main(["init", "--data", 'a"b\n[platforms.x]\\.csv']) == 0
    assert read_suite(folder / "suite.toml").datasets["rows"].path == 'a"b\n[platforms.x]\\.csv'


def test_a_platform_with_a_dot_and_a_file_with_a_space_can_be_used_as_they_are_printed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "my suite.toml", "--platform", "eu.west=s3://acme-eu", "--store", "s3://acme-central"]) == 0
    assert list(read_suite(folder / "my suite.toml").platforms) == ["eu.west"]
    assert "plumbline deploy 'my suite.toml' --publish" in capsys.readouterr().out


def test_an_editor_s_schema_takes_every_shipped_suite_and_refuses_a_misspelt_key(folder: Path) -> None:
    assert main(["init", *REAL]) == 0
    (first, *_) = (folder / "suite.toml").read_text().splitlines()
    schema = json.loads((folder / first.removeprefix("#:schema ")).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    checker = jsonschema.Draft202012Validator(schema)
    for path in (folder / "suite.toml", *SUITES.glob("*.toml")):
        checker.validate(tomllib.loads(path.read_text()))
    content = tomllib.loads((folder / "suite.toml").read_text())
    content["platforms"]["aws"]["acelerator"] = "cpu"
    assert not checker.is_valid(content)
    assert (
        "record of a different device"
        in suite_schema()["$defs"]["Platform"]["properties"]["accelerator"]["description"]
    )


def test_a_rehearsal_is_small_and_apart_from_the_real_suite(folder: Path) -> None:
    assert main(["init", "real.toml", *REAL]) == 0
    real = read_suite(folder / "real.toml")
    changed = {"compile": True, "compile_mode": "max-autotune", "attention": "flash_attention_2", "distributed": "fsdp"}
    (name, workload), *_ = real.workloads.items()
    real = real.replace(workloads={name: workload.replace(speed=workload.speed.replace(**changed))})
    small = rehearsal(real, folder / "state", {})
    assert small.name == "nightly-rehearsal"
    assert small.store == f"file://{folder}/state/central"
    assert [place.data for place in small.platforms.values()] == [
        "s3://acme-aws/data", "az://devstoreaccount1/plumbline/data", "s3://acme-gcp/ci/data",
    ]  # fmt: skip
    assert {place.accelerator for place in small.platforms.values()} == {"cpu"}
    (workload,) = small.workloads.values()
    assert workload.model == "tiny"
    assert workload.speed is not None
    assert (workload.speed.compile, workload.speed.attention, workload.speed.distributed) == (False, "sdpa", "ddp")
    assert small.schedule is None
    assert small.alerts == ()
    (folder / "small.toml").write_text(to_toml(small.to_json()))
    assert read_suite(folder / "small.toml") == small


def test_a_recipient_whose_address_is_set_hears_of_a_rehearsal(folder: Path) -> None:
    assert main(["init", "real.toml", *REAL]) == 0
    real = read_suite(folder / "real.toml")
    alert = real.alerts[0].replace(address_from="HOOK")
    assert rehearsal(real.replace(alerts=(alert,)), folder, {"HOOK"}).alerts == (alert,)


def test_explain_knows_every_cause_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert set(known) == {*get_args(CauseCode), *get_args(Outcome)}
    for entry in known.values():
        assert set(entry) == {"group", "meaning", "evidence", "do"}
        assert all(entry.values())
    assert main(["explain", "loader"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("Do: check storage")
    assert main(["explain", "data.label"]) == 2
    assert "data.labels" in capsys.readouterr().err


def test_explain_works_from_another_folder(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "plumbline", "explain", "data.order"], cwd=folder, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.stdout.startswith("data.order\n")
