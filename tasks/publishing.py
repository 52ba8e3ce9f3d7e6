"""The controller's last tasks: the round into the central store, its verdict into the Prefect UI."""

from __future__ import annotations

from prefect import task
from prefect.artifacts import create_markdown_artifact

from plumbline.central import CentralStore
from plumbline.rounds import Round
from plumbline.rounds.tables import findings_table, verdict_table
from plumbline.schema.verdict import RoundVerdict
from plumbline.stores import open_store

__all__ = ["publish", "show_in_ui"]


@task(name="publish", persist_result=False, retries=2, retry_delay_seconds=5)
def publish(this: Round, verdict: RoundVerdict) -> None:
    """Keep the round's outcome in the central store."""
    CentralStore(open_store(this.suite.store)).put_round(verdict)


@task(name="show", persist_result=False)
def show_in_ui(this: Round, verdict: RoundVerdict) -> None:
    """The verdict and the findings as artifacts of the run, where a person looks first."""
    name = this.suite.name.replace("_", "-").replace(".", "-")
    create_markdown_artifact(verdict_table(verdict), key=f"{name}-verdict", description=f"Round {this.id}")
    create_markdown_artifact(findings_table(verdict), key=f"{name}-findings", description=f"Round {this.id}")
