"""The controller's reporting tasks: the page, the round in the central store, the verdict in the Prefect UI."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact

from plumbline.central import CentralStore
from plumbline.report.summary import findings_table, step_summary
from plumbline.rounds import Round
from plumbline.rounds.harvest import Harvest
from plumbline.rounds.reporting import draw_plots, write_report
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store
from tasks.judging import Judged

__all__ = ["publish", "report", "show_in_ui"]


@task(name="report", persist_result=False, retries=2, retry_delay_seconds=5)
def report(this: Round, verdict: RoundVerdict, found: Harvest, judged: Judged) -> RoundVerdict:
    """Write the page; the verdict then says where."""
    return write_report(this, verdict, found, judged.baselines, CentralStore(open_store(this.suite.store)))


@task(name="publish", persist_result=False, retries=2, retry_delay_seconds=5)
def publish(this: Round, verdict: RoundVerdict) -> None:
    """Keep the round's outcome in the central store: the marker that it is over."""
    CentralStore(open_store(this.suite.store)).put_round(verdict)


@task(name="show", persist_result=False, retries=2, retry_delay_seconds=5)
def show_in_ui(this: Round, verdict: RoundVerdict, found: Harvest, judged: Judged) -> None:
    """Verdict, findings, plots and the report's link as artifacts of the run, where a person looks first."""
    central = CentralStore(open_store(this.suite.store))
    pages = {
        "verdict": step_summary(verdict),
        "findings": findings_table(verdict),
        "plots": draw_plots(this, verdict, found, judged.baselines, central),
    }
    name = this.suite.name.replace("_", "-").replace(".", "-")
    told = f"Round {this.id}: {verdict.verdict}"
    for what, page in pages.items():
        create_markdown_artifact(page, key=f"{name}-{what}", description=told)
    link = verdict.report if "://" in verdict.report else f"file://{verdict.report}"
    create_link_artifact(link, link_text=verdict.report, key=f"{name}-report", description=told)
