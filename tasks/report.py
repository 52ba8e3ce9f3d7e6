"""Reports of a round: page, central store, artifacts in the Prefect UI."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial

from prefect import get_run_logger
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from prefect.events import emit_event

from plumbline.data.stores import open_store
from plumbline.night.central import CentralStore
from plumbline.night.rounds import Round
from plumbline.night.rounds.gathered import GatheredRecords
from plumbline.night.rounds.outcome import round_events
from plumbline.night.rounds.reporting import write_report
from plumbline.night.rounds.series import write_nights
from plumbline.night.rounds.site import connect_reports, write_site
from plumbline.report.markdown import findings_table, step_summary
from plumbline.report.terminal import verdict_table
from plumbline.schema.errors import PlumblineError, SupersededError
from plumbline.schema.escape import escape
from plumbline.schema.verdict import RoundVerdict
from plumbline.tasks.judge import Judged
from plumbline.tasks.open_round import refuse_superseded
from plumbline.tasks.round_task import round_task


@round_task("report", retries=2)
def report_round(
    round_: Round, verdict: RoundVerdict, gathered: GatheredRecords, judged: Judged
) -> tuple[RoundVerdict, str]:
    """Write the report; return the linked verdict and the charts page."""
    refuse_superseded(round_.suite, round_.id)
    return write_report(round_, verdict, gathered, judged.baselines, CentralStore(open_store(round_.suite.store)))


@round_task("publish", retries=2)
def publish(round_: Round, verdict: RoundVerdict, judged: Judged) -> None:
    """Append the night to the series, then store the round's verdict."""
    refuse_superseded(round_.suite, round_.id)
    central = CentralStore(open_store(round_.suite.store))
    write_nights(round_, verdict, judged.nights, judged.baselines, central=central, now=datetime.now(UTC))
    central.put_round(verdict, partial(refuse_superseded, round_.suite, round_.id))


@round_task("note")
def add_notes(
    round_: Round, verdict: RoundVerdict, notes: Sequence[str], gathered: GatheredRecords, judged: Judged
) -> RoundVerdict:
    """Publish report and verdict again, with notes. If that fails, the published verdict stands."""
    verdict = verdict.replace(notes=(*verdict.notes, *notes))
    try:
        verdict, _ = report_round.fn(round_, verdict, gathered, judged)
        publish.fn(round_, verdict, judged)
    except SupersededError:
        raise
    except PlumblineError as error:
        get_run_logger().error("the notes could not be stored: %s", error)
    return verdict


@round_task("site", retries=2)
def write_pages(round_: Round) -> None:
    """Write the pages over all rounds, and link neighbouring reports."""
    refuse_superseded(round_.suite, round_.id)
    central = CentralStore(open_store(round_.suite.store))
    write_site(central, round_.suite)
    connect_reports(central, round_.suite.name, [round_.id], round_.suite.report_url)


@round_task("timings")
def keep_timings(round_: Round, verdict: RoundVerdict, seconds: Mapping[str, float]) -> None:
    """Store the verdict again with all phase durations."""
    timings = {**seconds, "total": sum(seconds.values())}
    central = CentralStore(open_store(round_.suite.store))
    central.put_round(verdict.replace(timings=timings), partial(refuse_superseded, round_.suite, round_.id))


def log_verdict(verdict: RoundVerdict) -> None:
    """Log the round's result table, for `prefect deployment run --watch`."""
    level = logging.INFO if verdict.verdict == "pass" else logging.ERROR
    get_run_logger().log(level, "%s", escape(verdict_table(verdict), "log"))


def emit_verdict(verdict: RoundVerdict) -> None:
    """Emit a Prefect event per platform and round, for a team's automations."""
    for event in round_events(verdict):
        emit_event(event.name, resource=dict(event.resource), payload=dict(event.payload))


@round_task("show", retries=2)
def show_in_ui(round_: Round, verdict: RoundVerdict, plots: str) -> None:
    """Create the run's artifacts: verdict, findings, plots and link."""
    pages = {"verdict": step_summary(verdict), "findings": findings_table(verdict), "plots": plots}
    name = round_.suite.name.replace("_", "-").replace(".", "-")
    told = f"Round {round_.id}: {verdict.verdict}"
    for what, page in pages.items():
        create_markdown_artifact(page, key=f"{name}-{what}", description=told)
    link = verdict.report if "://" in verdict.report else f"file://{verdict.report}"
    create_link_artifact(link, link_text=verdict.report, key=f"{name}-report", description=told)
