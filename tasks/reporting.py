"""The controller's reporting tasks: the page, the round in the central store, the verdict in the Prefect UI."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_link_artifact, create_markdown_artifact

from plumbline.central import CentralStore
from plumbline.rounds import Harvest, Round, write_report
from plumbline.rounds.tables import findings_table, verdict_table
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
def show_in_ui(this: Round, verdict: RoundVerdict) -> None:
    """The verdict, the findings and the report as artifacts of the run, where a person looks first."""
    name = this.suite.name.replace("_", "-").replace(".", "-")
    create_markdown_artifact(verdict_table(verdict), key=f"{name}-verdict", description=f"Round {this.id}")
    create_markdown_artifact(findings_table(verdict), key=f"{name}-findings", description=f"Round {this.id}")
    link = verdict.report if "://" in verdict.report else f"file://{verdict.report}"
    create_link_artifact(link, link_text="report", key=f"{name}-report", description=f"Round {this.id}")
