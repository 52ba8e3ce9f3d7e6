"""HTML, terminal, JUnit XML and summary: complete, bounded, and escaped."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from plumbline.records import LoadedRecord
from plumbline.report.junit import junit_xml
from plumbline.report.markdown import figures_page, findings_table, step_summary
from plumbline.report.terminal import comparison_table, verdict_table
from plumbline.schema.captured import CapturedSpec
from plumbline.schema.digest import digest_bytes
from plumbline.schema.manifest import DataFile
from plumbline.schema.verdict import Cause, Judgement, PlatformResult
from tests.unit.report.samples import drifted, finding, made_view, nights, passing, record, report_page, verdict_of

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[31m|`x`](http://evil)"
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Outline(HTMLParser):
    """Tags that are open, and the words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words = ""

    def handle_starttag(self, tag, _attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, _attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] != "style":
            self.words += data


def hostile_round():
    cause = Cause(
        code="operator", sure="likely", why=HOSTILE, evidence=(HOSTILE,), suspects=(HOSTILE,), tried=(HOSTILE,)
    )
    result = drifted(causes=(cause,), notes=({"text": HOSTILE},), timings={HOSTILE: 1.0})
    return verdict_of(
        "drift", {"aws": passing(), HOSTILE: result}, suite=HOSTILE, notes=(HOSTILE,), flow_run="javascript:x"
    )


def parsed(text):
    return ET.fromstring(text)  # noqa: S314 - we made it ourselves


def page_of(verdict, *platforms, **more):
    return report_page(verdict, {name: record(name) for name in platforms}, nights(), reference="aws", **more)


@pytest.mark.parametrize(
    "verdict",
    [
        verdict_of("pass", {"aws": passing(), "azure": passing()}),
        verdict_of("drift", {"aws": passing(), "azure": drifted()}),
        verdict_of("inconclusive", {"aws": passing(), "azure": PlatformResult(verdict="inconclusive")}),
        verdict_of("invalid", {"aws": passing(), "azure": PlatformResult(verdict="invalid"), "gcp": drifted()}),
        verdict_of("inconclusive", {}, timings={}),
    ],
    ids=lambda verdict: f"{verdict.verdict}-{len(verdict.platforms)}",
)
def test_the_page_is_well_formed_self_contained_and_says_its_verdict_first(verdict):
    page = page_of(verdict, *(name for name in verdict.platforms if name != "gcp"))
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.tags.count("script") == 1  # the page's own, by its digest
    assert "img" not in outline.tags
    assert not re.search(r"\ssrc=|@import|url\(|<link(?! rel=\"icon\" href=\"data:,\")", page)
    assert "default-src 'none'" in page
    words = " ".join(outline.words.split())
    assert words.index(verdict.verdict) < 40
    for name in verdict.platforms:
        assert name in words


def test_what_a_record_says_stays_text():
    verdict = hostile_round()
    hostile = record("azure", hostname=HOSTILE, packages={HOSTILE: HOSTILE}, environment={HOSTILE: HOSTILE})
    page = report_page(verdict, {"aws": record("aws"), HOSTILE: hostile}, reference="aws")
    outline = Outline()
    outline.feed(page)
    assert outline.tags.count("script") == 1  # the page's own, by its digest
    assert "img" not in outline.tags
    assert "<script>alert(1)</script>" in outline.words
    assert 'href="javascript' not in page
    assert "\x1b" not in page


def test_raw_records_are_linked_where_they_lie():
    page = page_of(verdict_of("pass", {"aws": passing()}), "aws", records_base="https://store/records")
    assert 'href="https://store/records/aws-20261120/record.json"' in page


def test_the_last_lines_of_a_commands_output_stay_text(tmp_path):
    data = "\n".join([*map(str, range(60)), HOSTILE]).encode() + b"\xff"
    (tmp_path / "output.txt").write_bytes(data)
    written = DataFile(key="output.txt", size=len(data), sha256=digest_bytes(data))
    spec = CapturedSpec(workload="mine", seed=7, steps=20)
    own = record("aws").record.replace(spec=spec, spec_sha256=spec.digest, parts=(written,))
    loaded = LoadedRecord(own, tmp_path)
    page = report_page(verdict_of("pass", {"aws": passing()}), {"aws": loaded}, reference="aws")
    outline = Outline()
    outline.feed(page)
    assert "20\n21\n" not in outline.words
    assert "58\n59\n<script>alert(1)</script>" in outline.words
    assert outline.tags.count("script") == 1
    assert "\x1b" not in page


def test_the_table_fits_a_hundred_columns_and_says_what_to_do_next():
    absent = PlatformResult(
        verdict="inconclusive", unavailable="no worker of the pool gcp-gpu came online within 900 s"
    )
    verdict = verdict_of(
        "drift",
        {"aws": passing(), "azure": drifted(), "a-platform-with-a-very-long-name-indeed": absent},
        report="/r.html",
    )
    text = verdict_table(verdict, suite_file="suite.toml")
    lines = text.splitlines()
    assert lines[0] == "✕ DRIFT nightly, round 20261120-020000-7f3a"
    assert all(len(line) <= 100 for line in lines if not line.startswith(("next", "run", "report")))
    assert "\x1b" not in text
    assert re.search(r"^azure +✕ drift +80\.27 % +655 +forward", text, re.MULTILINE)
    flat = " ".join(text.split())
    assert (
        "azure: cause: precision (confirmed): linear layers keep 10 bits of mantissa in place of 23: TF32 is on" in flat
    )
    assert "3.10e-4, limit 4.80e-6, against platform aws" in flat
    assert "no worker of the pool gcp-gpu came online within 900 s" in flat
    assert "58.1 s: train 44.0 s, confirm 9.8 s" in flat
    assert "report /r.html" in text
    accept = "plumbline baseline accept suite.toml --round 20261120-020000-7f3a --platform azure --force --reason WHY"
    assert lines[-1].endswith(f"if the change is intended: {accept}")
    assert "\x1b[1;31m✕ DRIFT" in verdict_table(verdict, colour=True)


@pytest.mark.parametrize(
    ("verdict", "notes", "step"),
    [
        ("pass", (), ""),
        (
            "pass",
            ({"code": "no-baseline", "text": "accept this record"},),
            "plumbline baseline accept s.toml --round 20261120-020000-7f3a (no baseline yet: aws)",
        ),
        ("inconclusive", (), "open the report: it names the missing evidence"),
        ("invalid", (), "open the report: it names the record that cannot be judged, and the reason"),
    ],
)
def test_the_next_step_fits_the_verdict(verdict, notes, step):
    text = verdict_table(verdict_of(verdict, {"aws": passing(verdict=verdict, notes=notes)}), suite_file="s.toml")
    result = [line for line in text.splitlines() if line.startswith("next")]
    assert result == ([f"next   {step}"] if step else [])


def test_an_unavailable_platform_is_a_question_to_doctor():
    absent = PlatformResult(verdict="inconclusive", unavailable="no worker")
    text = verdict_table(verdict_of("inconclusive", {"aws": passing(), "azure": absent}), suite_file="s.toml")
    assert text.endswith("next   plumbline doctor s.toml\n")


def test_only_platforms_without_a_baseline_are_named_beside_one_that_cannot_be_accepted():
    lacking = passing(notes=({"code": "no-baseline", "text": "accept this record"},))
    optional = PlatformResult(verdict="inconclusive", records=("x",), optional=True)
    text = verdict_table(verdict_of("pass", {"aws": lacking, "azure": optional}), suite_file="s.toml")
    assert text.endswith(
        "next   plumbline baseline accept s.toml --round 20261120-020000-7f3a --platform aws (no baseline yet: aws)\n"
    )


def test_every_cause_and_every_gate_has_a_line():
    """A loss of a third of the throughput stood behind "+1"."""
    slower = Cause(code="software", sure="likely", why="torch changed from 2.12 to 2.13")
    loss = finding("speed.throughput", "drift", metric="throughput", observed=-0.345, limit=-0.05, unit="relative")
    both = drifted(causes=(*drifted().causes, slower), findings=(*drifted().findings, loss))
    verdict = verdict_of("drift", {"aws": passing(), "azure": both})
    flat = " ".join(verdict_table(verdict).split())
    assert "azure: cause: precision (confirmed): linear layers" in flat
    assert "azure: cause: software (likely): torch changed from 2.12 to 2.13" in flat
    assert "probe.forward: relative error" in flat
    assert "probe.loss" not in flat
    assert "speed.throughput: throughput: -34.5 %, limit -5.0 %" in flat
    assert "+1" not in flat
    assert "**azure**: software (likely): torch changed" in step_summary(verdict)


PRESIGNED = (
    "https://s3.example/b/rounds/x/report.html?X-Amz-Signature=" + "a%2F" * 400 + "&X-Amz-Security-Token=(x)|y<z"
)


def test_a_long_link_is_a_whole_link_everywhere():
    """A presigned address was cut at 300 characters and set as code."""
    verdict = verdict_of("drift", {"aws": passing(), "azure": drifted()}, report=PRESIGNED)
    (line,) = [line for line in step_summary(verdict).splitlines() if "[Report]" in line]
    whole = PRESIGNED.replace("(", "%28").replace(")", "%29").replace("|", "%7C").replace("<", "%3C")
    assert line == f"- [Report]({whole})"
    assert f"report {PRESIGNED}\n" in verdict_table(verdict)
    assert "- [Flow run](http://127.0.0.1:4200/runs/flow-run/1)" in step_summary(verdict)


def test_a_terminal_gets_no_control_characters_from_records():
    assert "\x1b" not in verdict_table(hostile_round())


def test_junit_fails_for_drift_and_errs_for_what_is_not_known():
    absent = PlatformResult(verdict="inconclusive", unavailable="no worker")
    broken = PlatformResult(verdict="invalid")
    verdict = verdict_of("drift", {"aws": passing(), "azure": drifted(), "gcp": absent, "lab": broken})
    root = parsed(junit_xml(verdict))
    counts = {suite.get("name"): tuple(suite.get(key) for key in ("tests", "failures", "errors")) for suite in root}
    assert counts == {"aws": ("3", "0", "0"), "azure": ("3", "2", "0"), "gcp": ("1", "0", "1"), "lab": ("1", "0", "1")}
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("8", "2", "2")
    failure = root.find(".//failure")
    assert "3.10e-4, limit 4.80e-6" in failure.get("message")
    assert "cause: precision (confirmed)" in failure.text
    assert root.find(".//skipped") is None
    empty = parsed(junit_xml(verdict_of("inconclusive", {})))
    assert empty.get("errors") == "1"


def test_a_ci_s_history_finds_a_case_in_the_next_night():
    """Names without a record's or a round's id; times of the training's parts."""

    def cases(record_id, round_id):
        findings = tuple(
            item.replace(
                workload="bert", check=f"bert.{item.check}", against=item.against.replace("20261101", record_id)
            )
            for item in (*drifted().findings, finding("learn.accuracy", against=f"baseline {record_id}"))
        )
        root = parsed(junit_xml(verdict_of("drift", {"azure": drifted(findings=findings)}, round=round_id)))
        assert root[0].get("time") == "44.000"
        return [(case.get("classname"), case.get("name"), case.get("time")) for case in root.iter("testcase")]

    tonight = cases("azure-20261102", "20261120-020000-7f3a")
    assert tonight == cases("azure-20261103", "20261121-020000-9c1b")
    assert tonight == [
        ("nightly.bert.azure", "probe.forward against platform aws", "6.000"),
        ("nightly.bert.azure", "probe.loss against platform aws", "6.000"),
        ("nightly.bert.azure", "learn.accuracy against the baseline", "0.000"),
        ("nightly.bert.azure", "learn.accuracy against the baseline (2)", "0.000"),
    ]


def test_junit_is_xml_whatever_records_say():
    root = parsed(junit_xml(hostile_round()))
    assert root.find(".//script") is None


def test_the_step_summary_is_a_table_that_records_cannot_break():
    text = step_summary(verdict_of("drift", {"aws": passing(), "azure": drifted()}))
    assert text.startswith("## ✕ Plumbline: drift\n")
    assert "| azure | ✕ drift | precision (confirmed) | 80.27 % | 655 |" in text
    assert "**azure**: precision (confirmed): " in text
    hostile = step_summary(hostile_round())
    rows = [line for line in hostile.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 7 for row in rows)
    assert "<script" not in hostile
    assert "http://" not in hostile
    # The flow run's address alone is set as code, and cannot end it.
    assert hostile.replace("\\`", "").count("`") == 2
    assert hostile.endswith("- Flow run: `javascript:x`\n")


def test_the_findings_table_keeps_every_digit_and_what_records_say_in_its_cell():
    table = findings_table(verdict_of("drift", {"aws": passing(), "azure": drifted()})).splitlines()
    assert table[2].startswith("| azure | probe.forward | ✕ drift | 0.00031")
    evil = drifted(findings=(drifted().findings[0].replace(check="a|b", detail="<script>x</script>\n| y |"),))
    rows = findings_table(verdict_of("drift", {"azure": evil})).splitlines()
    assert len(rows) == 3
    assert rows[2].startswith("| azure | a\\|b | ✕ drift |")
    assert len(re.findall(r"(?<!\\)\|", rows[2])) == 8
    assert "<script>" not in rows[2]


def pictures(page):
    result = re.findall(r"^!\[[^\n]*\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)$", page, re.MULTILINE)
    return [parsed(base64.b64decode(item).decode()) for item in result]


def test_every_chart_of_the_report_is_a_picture_of_its_own():
    records = {"aws": record("aws"), "azure": record("azure", noise=3e-4, start="bert.encoder.layer.0")}
    view = made_view(
        verdict_of("drift", {"aws": passing(), "azure": drifted()}), records, reference="aws", history=nights()
    )
    charts = [view.history, *(chart for workload in view.workloads for chart in workload.charts)]
    result = pictures(figures_page(view))
    assert len(result) == len(charts) >= 3
    for picture, chart in zip(result, charts, strict=True):
        assert len(picture.findall(".//{*}polyline")) == len(chart.lines)
        words = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
        assert {label.text for label in chart.labels} | {item.name for item in chart.legend[1:]} <= words


def test_pictures_are_xml_whatever_platforms_are_called_and_none_without_records():
    hostile = "a]]><script>&"
    records = {"aws": record("aws"), hostile: record("azure")}
    verdict = verdict_of("pass", {"aws": passing(), hostile: passing()})
    page = figures_page(made_view(verdict, records, reference="aws"))
    assert "<script" not in page
    assert [picture.find(".//{*}script") for picture in pictures(page)] == [None] * len(pictures(page)) != []
    assert "there is no chart" in figures_page(made_view(verdict_of("inconclusive", {}), {}))


def test_the_controller_s_faces_load_no_torch():
    code = "import sys, plumbline.report, plumbline.report.terminal; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300, check=False).returncode == 0


def test_a_comparison_says_all_of_a_count_and_shares_in_percent():
    findings = (
        finding(check="probe.portable", metric="windows", observed=8.0, limit=8.0),
        finding(check="data.rows", metric="rows that differ", observed=0.0, limit=0.0),
        finding(check="learn.accuracy", metric="difference", observed=0.004, limit=0.02, unit="absolute"),
    )
    text = comparison_table(Judgement(verdict="pass", findings=findings), record("aws"), record("azure"))
    lines = ("windows: all 8", "rows that differ: 0, limit 0", "difference: 0.4 %, limit 2.0 %")
    assert [line for line in lines if line not in text] == []
