"""Pages over all rounds: right, bounded, escaped, and linked as rounds come and go."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
import requests

from plumbline.cli.main import main
from plumbline.cli.site import PageServer, page_server
from plumbline.data.stores import open_store, read_bytes
from plumbline.local.servers import reserve_port
from plumbline.night.central import CentralStore
from plumbline.night.central.series import series_key, write_series
from plumbline.night.rounds.reporting import link_to
from plumbline.night.rounds.site import connect_reports, write_site
from plumbline.report.overview import SuiteRow, index_page
from plumbline.report.site import NIGHTS, night_rows, suite_page
from plumbline.schema.errors import ConfigurationError
from plumbline.schema.series import JudgedRound, SeriesFile
from tests.unit.report.samples import drifted, passing, verdict_of
from tests.unit.report.site_store import LOSS, filled_store, night, series_of
from tests.unit.report.test_faces import HOSTILE, Outline

MOST_BYTES = 3_000_000


def outlined(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    return outline


def test_the_matrix_of_twenty_platforms_and_four_hundred_nights_is_small_and_complete() -> None:
    platforms = [f"region-{index:02}-pool-with-a-long-name" for index in range(20)]
    names = [night(index) for index in range(NIGHTS + 30)]
    judged = {
        name: JudgedRound(time=1e9 + 86400 * index, verdict="drift", causes=("data.content", "operator"))
        for index, name in enumerate(names)
    }
    series = {platform: SeriesFile(suite="nightly", platform=platform, judged=judged) for platform in platforms}
    began = time.process_time()
    page = suite_page("nightly", platforms, series, None, names)
    assert time.process_time() - began < 20
    assert len(page) < MOST_BYTES
    assert page.count(">✕</td>") == 20 * NIGHTS
    assert outlined(page).tags.count("a") == 1 + len(platforms) + NIGHTS  # one key press a night, not one a cell


def test_a_night_shows_what_is_new_who_did_not_pass_and_links_only_reports_that_exist() -> None:
    series = {name: series_of(name, 30) for name in ("aws", "azure")}
    rows = night_rows("nightly", ("aws", "azure"), series, {night(29)})
    assert [row.round for row in rows] == [night(index) for index in reversed(range(30))]
    assert rows[0].report == f"../../rounds/nightly/{night(29)}/report.html"
    assert {row.report for row in rows[1:]} == {""}
    assert rows[0].words == "azure: software"
    (new,) = [row for row in rows if any(cell.is_new for cell in row.cells)]
    assert new.round == night(30 - LOSS)
    assert [cell.is_new for cell in new.cells] == [False, True]
    assert new.cells[1].title.endswith("pass, new software")


def test_a_platform_without_a_verdict_in_a_round_is_never_shown_as_passed() -> None:
    series = {"aws": series_of("aws", 3), "azure": SeriesFile(suite="nightly", platform="azure")}
    cells = {row.cells[1].symbol for row in night_rows("nightly", ("aws", "azure"), series, ())}
    assert cells == {"·"}


def test_a_platforms_page_has_every_metric_with_reference_limit_decision_and_since(tmp_path: Path) -> None:
    central, suite = filled_store(tmp_path, nights=60)
    write_site(central, suite)
    page = read_bytes(central.store, "site/nightly/platform-azure.html").decode()
    words = " ".join(outlined(page).words.split())
    for metric in ("Throughput55", "Peak memory1,192 MiB", "Accuracy0.8047", "Time to the first step"):
        assert metric in words
    assert "4 nights so far: too few for a reference" in words  # measured on four of the sixty
    assert "Since 2025-12-08 02:40 (11 rounds); before that pass on 2025-12-07 02:40; software" in words
    assert "an interleaved A/B on one machine shows the loss: the software causes it" in words
    assert "step since 2025-12-07" in words
    assert "; limit 5" in words  # samples per second, 5% below the reference
    assert "1192 MiB" in words
    assert "Changes of machine and software" in words
    other = outlined(read_bytes(central.store, "site/nightly/platform-aws.html").decode()).words
    assert "aws: pass in its last round." in other
    assert "drift in" not in other


def test_reports_are_linked_in_time_and_again_when_one_is_removed(tmp_path: Path) -> None:
    central, suite = filled_store(tmp_path, nights=30)
    connect_reports(central, "nightly", [night(28)], "")

    def links(index: int) -> list[str]:
        page = read_bytes(central.store, f"rounds/nightly/{night(index)}/report.html").decode()
        nav = page.partition("<!--nights-->")[2].partition("<!--/nights-->")[0]
        return [piece.partition('"')[0] for piece in nav.split('href="')[1:]]

    home = "../../../site/nightly/index.html"
    assert links(27) == [home, f"../{night(28)}/report.html"]
    assert links(28) == [home, f"../{night(27)}/report.html", f"../{night(29)}/report.html"]
    for name in ("report.html", "round.json"):
        central.store.delete(f"rounds/nightly/{night(28)}/{name}")
    connect_reports(central, "nightly", [night(28)], "")
    assert links(27) == [home, f"../{night(29)}/report.html"]
    assert links(29) == [home, f"../{night(27)}/report.html"]
    write_site(central, suite)
    page = read_bytes(central.store, "site/nightly/index.html").decode()
    assert night(28) in page
    assert f"{night(28)}/report.html" not in page


def test_a_damaged_series_and_a_former_platform_cost_no_other_page(tmp_path: Path) -> None:
    central, suite = filled_store(tmp_path, nights=30)
    central.put_text("site/nightly/platform-gone.html", "former")
    central.put_text(series_key("nightly", "azure"), "{")
    write_site(central, suite)
    keys = {info.key for info in central.store.list("site/")}
    pages = ("index.html", "nightly/index.html", "nightly/platform-aws.html", "nightly/platform-azure.html")
    assert keys == {f"site/{page}" for page in pages}
    assert "aws: pass" in read_bytes(central.store, "site/nightly/platform-aws.html").decode()


@pytest.mark.parametrize("other", ["daily", "weekly"])
def test_the_start_page_has_the_nights_of_each_suite_alone(tmp_path: Path, other: str) -> None:
    central, suite = filled_store(tmp_path, nights=30)
    write_series(central, series_of("aws", 5).model_copy(update={"suite": other}))
    central.put_round(verdict_of("pass", {"aws": passing()}, suite=other, round=night(4)))
    write_site(central, suite)
    page = read_bytes(central.store, "site/index.html").decode()
    assert sorted(re.findall(r"(\d+) nights, the last", page)) == ["30", "5"]


def test_hostile_text_stays_text_on_every_page() -> None:
    judged = {"20251120-a": JudgedRound(time=1e9, verdict="drift", causes=(HOSTILE,))}
    series = {"aws": SeriesFile(suite=HOSTILE, platform="aws", judged=judged)}
    verdict = verdict_of("drift", {HOSTILE: drifted()}, suite=HOSTILE, round=HOSTILE)
    for page in (
        index_page([SuiteRow(HOSTILE, verdict, has_pages=True, reports={HOSTILE}, series={HOSTILE: series["aws"]})]),
        suite_page(HOSTILE, ["aws"], series, verdict, {"20251120-a"}),
    ):
        tags = outlined(page).tags
        assert "img" not in tags
        assert "\x1b" not in page
        assert 'href="http' not in page


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "[::1", ""])
def test_a_page_of_a_name_that_leads_to_this_machine_reads_nothing(tmp_path: Path, host: str) -> None:
    """A browser that was made to look up evil.example as 127.0.0.1 asks with that name."""
    central = CentralStore(open_store(f"file://{tmp_path}"))
    central.put_text("site/nightly/index.html", "nightly")
    with PageServer(central, root="reports") as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        port, page = server.server_address[1], f"{server.url}/site/nightly/index.html"
        for own in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST"):
            assert requests.get(page, headers={"Host": own}, timeout=10).status_code == 200
        root = requests.get(f"{server.url}/", allow_redirects=False, timeout=10)
        assert (root.status_code, root.headers["Location"]) == (302, f"{server.url}/site/index.html")
        head = requests.head(page, timeout=10)
        assert (head.status_code, head.headers["Content-Length"], head.text) == (200, "7", "")
        answer = requests.get(page, headers={"Host": host.format(port=port)}, timeout=10)
        assert answer.status_code in (404, 502)
        assert "nightly" not in answer.text
        server.shutdown()


def test_the_command_writes_the_pages_and_the_server_shows_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    central, _ = filled_store(tmp_path, nights=30)
    central.put_text("secrets/nightly/x.json", "secret")
    assert main(["store", "site", str(tmp_path / "suite.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["site"] == str(tmp_path / "site/nightly/index.html")
    assert main(["store", "site", str(tmp_path / "suite.toml"), "--serve", "--port", "99999"]) == 2
    assert "--port: 99999" in capsys.readouterr().err
    with PageServer(central) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        root = server.url.rpartition("/")[0]
        page = requests.get(f"{server.url}/site/nightly/index.html", timeout=10)
        assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        report = requests.get(f"{server.url}/rounds/nightly/{night(28)}/report.html", timeout=10).text
        assert f'href="../{night(27)}/report.html"' in report  # also where the store's own pages have no links
        for path in (
            f"{root}/site/nightly/index.html", f"{root}/wrong/site/nightly/index.html",
            f"{server.url}/secrets/nightly/x.json", f"{server.url}/site/../secrets/nightly/x.json",
            f"{server.url}/site/%2e%2e/secrets/nightly/x.json", f"{server.url}/site/none.html",
            f"{server.url}/suite.toml",
        ):  # fmt: skip
            answer = requests.Session().send(_exactly(path), timeout=10)
            assert answer.status_code in (404, 502), path
            assert "secret" not in answer.text
        server.shutdown()
    # The links of alerts begin with report_url: if that is an address of this machine, they lead to this server.
    port = reserve_port()
    for address in (f"http://127.0.0.1:{port}/nightly reports", f"http://127.0.0.1:{port}"):
        with page_server(central, address.replace(" ", "%20"), 0) as server:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            link = link_to(central, f"rounds/nightly/{night(28)}/report.html", address.replace(" ", "%20")).url
            assert requests.get(link, timeout=10).text == report
            assert requests.get(f"http://127.0.0.1:{port}/secrets/nightly/x.json", timeout=10).status_code == 404
            with pytest.raises(ConfigurationError, match="report_url"):
                page_server(central, address, 0)
            server.shutdown()
    with page_server(central, "https://reports.example.com/x", 0) as server:
        assert server.root != "x"


def _exactly(url: str) -> requests.PreparedRequest:
    """Return a request whose dots nobody resolves."""
    request = requests.Request("GET", url).prepare()
    request.url = url
    return request
