"""`plumbline report` and `plumbline store import` with a real central store on disk."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from plumbline.cli.main import main
from plumbline.data.stores import open_store, read_bytes
from plumbline.judge.history.metrics import row_of
from plumbline.night.baseline import BaselineBook
from plumbline.night.central import CentralStore
from plumbline.night.central.series import extend_series
from plumbline.night.rounds.plan import night_of
from plumbline.night.rounds.reporting import last_rounds
from plumbline.records import load_record
from plumbline.schema.record import RECORD_NAME, read_record
from tests.record_parts import record_parts, write_arrays
from tests.unit.judge.conftest import make_record
from tests.unit.report.samples import drifted, passing, record, verdict_of

SUITE = """
name = "nightly"
store = "{store}"
reference = "aws"
workloads.w = {{ model = "tiny", data = "reviews", seed = 7, batch_size = 8, probe = {{ steps = 2 }} }}
platforms.aws = {{ work_pool = "a", data = "file://a", outbox = "file://oa" }}
platforms.azure = {{ work_pool = "b", data = "file://b", outbox = "file://ob" }}
"""


def write_record(folder, platform, **more):
    """Write a record to disk, like `plumbline train`."""
    loaded = record(platform, **more)
    folder.mkdir(parents=True)
    save_file({"sketch": loaded.arrays["sketches"]["sketch"]}, folder / "sketches.safetensors")
    whole = loaded.record.replace(parts=record_parts(folder))
    (folder / RECORD_NAME).write_text(whole.model_dump_json())
    return folder


def whole_record(folder, record_id):
    """Write a record of azure with every part that the judge reads."""
    made = make_record()
    parts = write_arrays(folder, {name: arrays for name, arrays in made.arrays.items() if name != "capture"})
    described = made.record.replace(record_id=record_id, platform="azure", parts=parts)
    (folder / RECORD_NAME).write_text(described.model_dump_json())
    return folder


@pytest.fixture
def stored(tmp_path):
    url = f"file://{tmp_path}/central"
    central = CentralStore(open_store(url))
    central.put_record(load_record(write_record(tmp_path / "r1", "aws")))
    central.put_record(load_record(write_record(tmp_path / "r2", "azure", noise=3e-4, start="bert.encoder.layer.0")))
    for platform in ("aws", "azure"):
        baseline = f"{platform}-20261101"
        central.put_record(load_record(write_record(tmp_path / baseline, platform, record_id=baseline, rate=600.0)))
    central.put_round(
        verdict_of("pass", {"aws": passing(), "azure": passing(records=())}, round="20261119-020000-aaaa")
    )
    central.put_round(verdict_of("drift", {"aws": passing(), "azure": drifted()}))
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE.format(store=url))
    return central, url, str(suite)


def test_a_round_is_rendered_again_into_the_store(stored, capsys):
    central, _, suite = stored
    assert main(["report", "20261120-020000-7f3a", "--suite", suite, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["round"], answer["verdict"]) == ("20261120-020000-7f3a", "drift")
    page = read_bytes(central.store, "rounds/nightly/20261120-020000-7f3a/report.html").decode()
    assert "azure has drifted" in page
    assert "38 of 40 over the limit" in page
    assert "2026-11-20 (this round); before that pass on 2026-11-19" in page
    assert answer["report"].endswith("rounds/nightly/20261120-020000-7f3a/report.html")


def test_the_latest_round_goes_to_a_file_or_to_stdout_in_every_form(stored, tmp_path, capsys):
    _, url, suite = stored
    out = tmp_path / "page.html"
    assert main(["report", "latest", "--store", url, "--out", str(out)]) == 0
    assert f'href="{url}/records/aws-20261120/record.json"' in out.read_text()
    capsys.readouterr()
    for form, words in (("text", "✕ DRIFT"), ("junit", "<testsuites"), ("summary", "## ✕ Plumbline: drift")):
        assert main(["report", "latest", "--suite", suite, "--format", form]) == 0
        assert words in capsys.readouterr().out


def test_a_round_whose_records_were_removed_is_still_reported(stored, tmp_path, capsys):
    central, url, _ = stored
    absent = verdict_of("pass", {"aws": passing(records=("gone-1",))}, round="20261121-020000-bbbb")
    central.put_round(absent)
    assert main(["report", "latest", "--store", url, "--out", str(tmp_path / "page.html")]) == 0
    assert "the record gone-1 is no longer in the store" in capsys.readouterr().err
    assert "No platform left a record" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("where", ["--suite", "--store"])
def test_an_old_round_that_cannot_be_read_costs_no_report_and_the_newest_is_not_replaced_by_it(
    stored, tmp_path, capsys, where
):
    """A damaged newest night must not be answered with the verdict of the night before."""
    central, url, suite = stored
    central.put_text("rounds/nightly/20261118-020000-cccc/round.json", "{}")
    out = str(tmp_path / "page.html")
    argv = ["report", "latest", where, suite if where == "--suite" else url, "--out", out, "--json"]
    assert main(argv) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["round"] == "20261120-020000-7f3a"
    assert output.err.startswith("plumbline: the round 20261118-020000-cccc is skipped: ")
    central.put_text("rounds/nightly/20261122-020000-dddd/round.json", "cut off {")
    assert main(["report", "latest", where, argv[3], "--format", "text"]) == 4
    output = capsys.readouterr()
    assert "rounds/nightly/20261122-020000-dddd/round.json" in output.err
    assert not output.out
    if where == "--suite":
        assert main(["baseline", "accept", suite]) == 4
    assert main(["report", "20261120-020000-7f3a", where, argv[3]]) == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["report", "none", "--store", "{url}"],
            "the round 'none' does not exist (hint: `plumbline history SUITE` lists the rounds)",
        ),
        (["report", "latest", "--store", "file://{root}/empty"], "no round exists yet"),
        (["report", "../x", "--store", "{url}"], "plumbline: ROUND: '../x' is not a valid name of a round"),
        (["report", "latest", "--store", "{url}", "--out", "{root}/none/x.html"], "/none: --out: no such folder"),
        (["report", "latest", "--store", "{url}", "--out", "{root}"], "--out: is a folder"),
        (
            ["report", "latest", "--store", "{url}", "--out", "{root}/suite.toml/x"],
            "/suite.toml: --out: is not a folder",
        ),
    ],
)
def test_an_unknown_round_is_one_line(stored, tmp_path, capsys, argv, message):
    assert main([word.format(url=stored[1], root=tmp_path) for word in argv]) == 2
    errors = capsys.readouterr().err.strip()
    assert message in errors
    assert len(errors.splitlines()) == 1


def test_import_takes_a_record_once_and_says_so(stored, tmp_path, capsys):
    central, url, suite = stored
    folder = write_record(tmp_path / "new", "azure", record_id="azure-notebook")
    assert main(["store", "import", str(folder), "--suite", suite, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["record"], answer["new"]) == ("azure-notebook", True)
    assert central.has_record("azure-notebook")
    assert main(["store", "import", str(folder), "--store", url]) == 0
    assert "was there already" in capsys.readouterr().out


def test_an_imported_record_is_a_round_that_every_command_reads(stored, tmp_path, capsys):
    """The store's only record could be reported, accepted and compared by no command."""
    central, url, suite = stored
    assert main(["store", "import", str(whole_record(tmp_path / "new0", "azure-lab-0")), "--suite", suite]) == 0
    name = "import-azure-lab-0"
    assert f"next: plumbline baseline accept {suite} --round {name}" in capsys.readouterr().out
    # A round by hand is never the newest of the nights.
    assert main(["report", "latest", "--suite", suite, "--format", "text"]) == 0
    assert name not in capsys.readouterr().out
    assert main(["report", name, "--suite", suite, "--format", "text"]) == 0
    assert f"✓ PASS nightly, round {name}" in capsys.readouterr().out
    assert main(["report", name, "--suite", suite]) == 0
    assert main(["baseline", "accept", suite, "--round", name]) == 0
    assert "azure-lab-0  ← current" in capsys.readouterr().out
    folder = whole_record(tmp_path / "new2", "azure-lab-2")
    assert main(["store", "import", str(folder), "--suite", suite, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["round"], answer["verdict"]) == ("import-azure-lab-2", "pass")
    against = {finding.against for finding in central.get_round("nightly", answer["round"]).platforms["azure"].findings}
    assert against == {"baseline azure-lab-0"}
    # By id, by address, and by folder.
    records = f"{url}/records"
    for one, other in (
        ("azure-lab-0", "azure-lab-2"),
        (f"{records}/azure-lab-0", f"{records}/azure-lab-2/record.json"),
    ):
        assert main(["compare", one, other, "--suite", suite]) == 0
        assert main(["compare", one, str(folder), "--suite", suite]) == 0
    capsys.readouterr()
    for wrong, message in (
        ("none", "the record 'none' does not exist"),
        ("s3://b/x", "is not the address of a record"),
    ):
        assert main(["compare", wrong, str(folder), "--suite", suite]) == 2
        assert message in capsys.readouterr().err


def test_import_refuses_what_is_no_whole_record(stored, tmp_path, capsys):
    central, url, suite = stored
    cut = write_record(tmp_path / "cut", "azure", record_id="cut")
    data = (cut / "sketches.safetensors").read_bytes()
    (cut / "sketches.safetensors").write_bytes(data[:-8])
    assert main(["store", "import", str(cut), "--store", url]) == 4
    assert "does not match the digest in its record" in capsys.readouterr().err
    odd = write_record(tmp_path / "odd", "azure", record_id="odd")
    save_file({"sketch": np.zeros((3, 64))}, odd / "sketches.safetensors")
    described = json.loads((odd / RECORD_NAME).read_text())
    described["parts"] = [part.to_json() for part in record_parts(odd)]
    (odd / RECORD_NAME).write_text(json.dumps(described))
    assert main(["store", "import", str(odd), "--store", url]) == 4
    assert "does not contain float64 sketches of 40 taps" in capsys.readouterr().err
    assert main(["store", "import", str(tmp_path), "--store", url]) == 4
    assert main(["store", "import", str(write_record(tmp_path / "lab", "lab")), "--suite", suite]) == 2
    assert "'lab' is not a platform of the suite" in capsys.readouterr().err
    assert not {"cut", "odd", "lab-20261120"}.intersection(central.list_records())


def test_the_nights_before_are_the_suites_own_though_others_fill_the_store(stored):
    central, _, _ = stored
    for minute in range(45):
        busy = verdict_of("pass", {"aws": passing()}, round=f"20261120-00{minute:02}00-bbbb").replace(suite="other")
        central.put_round(busy)
    tonight = verdict_of("drift", {"aws": passing(), "azure": drifted()}, round="20261121-020000-cccc")
    nights = last_rounds(central, tonight.suite, 30, without=tonight.round)
    assert [night_of(night.round) for night in nights if "azure" in night.platforms] == ["2026-11-20", "2026-11-19"]


def test_a_damaged_baseline_or_record_is_left_out_of_a_report_and_named(stored, tmp_path, capsys):
    central, url, _ = stored
    argv = ["report", "latest", "--store", url, "--out", str(tmp_path / "page.html")]
    for name in ("aws-20261101", "azure-20261120"):
        central.put_text(f"records/{name}/record.json", "{}")
        assert main(argv) == 0
        assert f"plumbline: the record {name} is skipped: " in capsys.readouterr().err
        assert "azure has drifted" in (tmp_path / "page.html").read_text()


def test_a_report_rendered_again_shows_what_the_round_knew(stored, tmp_path):
    """After its acceptance a first round said both "no baseline" and "+0.0 % against its baseline"."""
    central, url, _ = stored
    page = tmp_path / "page.html"
    argv = ["report", "20261118-020000-ffff", "--store", url, "--out", str(page)]
    lacking = {"code": "no-baseline", "text": "no baseline: accept this record"}
    first = passing(findings=passing().findings[:2], notes=(lacking,))
    central.put_round(verdict_of("pass", {"aws": first}, round="20261118-020000-ffff"))
    assert main(argv) == 0
    before = page.read_text()
    BaselineBook(central).accept(record("aws").record)
    assert main(argv) == 0
    assert page.read_text() == before
    assert "no baseline: accept this record" in before
    assert "against its baseline" not in before
    assert main(["report", "20261120-020000-7f3a", "--store", url, "--out", str(page)]) == 0
    assert "+2.0 % against its baseline" in page.read_text()


def test_a_report_names_what_changed_since_the_night_before_or_a_night_by_name(stored, tmp_path, capsys):
    """The lock of two nights could be compared by no command."""
    central, _, suite = stored
    rows = []
    for day, torch in ((18, "2.11.0"), (19, "2.12.1")):
        folder = write_record(tmp_path / f"r{day}", "azure", record_id=f"azure-{day}", packages={"torch": torch})
        kept = read_record(folder).replace(round_id=f"202611{day}-020000-aaaa")
        (folder / RECORD_NAME).write_text(kept.model_dump_json())
        central.put_record(load_record(folder))
        rows.append(row_of(kept))
    extend_series(central, "nightly", "azure", [row for row in rows if row])
    central.put_round(verdict_of("pass", {"azure": passing(records=())}, round="20261118-020000-aaaa"))
    page = tmp_path / "page.html"
    argv = ["report", "20261120-020000-7f3a", "--suite", suite, "--out", str(page)]
    assert main(argv) == 0
    assert "azure since 2026-11-19 02:00" in page.read_text()
    assert ">2.12.1</td>" in page.read_text()
    assert main([*argv, "--since", "20261118-020000-aaaa"]) == 0
    assert "<h2>Since 2026-11-18 02:00</h2>" in page.read_text()
    assert ">2.11.0</td>" in page.read_text()
    assert main([*argv, "--since", "none"]) == 2
    assert "the round 'none' does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "junit", "summary"])
def test_what_was_rendered_stands_in_the_json_where_no_file_takes_it(stored, tmp_path, capsys, form):
    argv = ["report", "latest", "--suite", stored[2], "--format", form]
    assert main(argv) == 0
    rendered = capsys.readouterr().out
    assert main([*argv, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["report"], answer["text"]) == ("", rendered)
    assert main([*argv, "--json", "--out", str(tmp_path / "out")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["report"], "text" in answer) == (str(tmp_path / "out"), False)


@pytest.mark.usefixtures("stored")
def test_import_into_a_file_says_that_it_is_no_folder(tmp_path, capsys):
    url = f"file://{tmp_path}/suite.toml"
    assert main(["store", "import", str(tmp_path / "r1"), "--store", url]) == 2
    assert capsys.readouterr().err.startswith(f"plumbline: {url}: is not a folder (")
