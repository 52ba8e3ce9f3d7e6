"""Export to MLflow: one run per training, with metrics, curves and report.

A run's tag `plumbline.key` is its record's id: a night that was exported before is found by it, and never twice there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plumbline.cli.exchange.runs import NightRun, curves_of, parameters_of, stored_report
from plumbline.night.central import CentralStore
from plumbline.schema.errors import ConfigurationError, UnavailableError
from plumbline.schema.escape import one_line
from plumbline.schema.variables import variable

_KEY, _VERDICT, _REPORT = "plumbline.key", "plumbline.verdict", "report.html"
_REFUSED = re.compile(r"[^\w ./:-]", re.ASCII)
"""Characters that MLflow refuses in the key of a parameter."""
_METRICS, _PARAMETERS, _RUNS = 1000, 100, 1000
"""Maximum numbers of MLflow's requests."""
_DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Nothing is sent but to the tracking server, a server that is away is reported within seconds, stdout is ours."""
_HINT = "name a tracking server, such as http://HOST:5000, or a database, such as sqlite:///mlflow.db"


def write_mlflow_runs(central: CentralStore, suite: str, runs: Sequence[NightRun], uri: str) -> None:
    """Write runs into the suite's MLflow experiment, updating verdicts of finished ones.

    The server is asked also where no run is to be written: a wrong address is found on the first day.
    """
    # Before MLflow is imported.
    os.environ.update({name: value for name, value in _DEFAULTS.items() if not variable(name)})
    from mlflow import MlflowClient

    with _mlflow_errors(uri):
        client = MlflowClient(tracking_uri=uri)
        experiment = _experiment(client, suite, uri)
        known = _known(client, experiment, min((run.time for run in runs), default=0.0))
        for run in runs:
            old = known.get(run.key)
            if old is not None and old.info.status != "FINISHED":  # an export that was ended in between
                client.delete_run(old.info.run_id)
                old = None
            if old is None:
                _write(client, experiment, central, run)
            elif old.data.tags.get(_VERDICT) != run.verdict:
                _describe(client, old.info.run_id, central, run)


@contextmanager
def _mlflow_errors(uri: str) -> Iterator[None]:
    """Convert MLflow's errors to one line."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        text = one_line(str(error))[:300]
        if error.error_code in {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE"} and uri.startswith("http"):
            raise UnavailableError(text, where=uri, hint="check that the tracking server answers") from error
        raise ConfigurationError(text, where="--out", key=uri, hint=_HINT) from error


def _experiment(client: Any, suite: str, uri: str) -> str:
    """Return the experiment's id, creating the experiment if missing."""
    found = client.get_experiment_by_name(suite)
    if found is None:
        return str(client.create_experiment(suite, artifact_location=_artifacts(suite, uri)))
    if found.lifecycle_stage != "active":
        hint = f"mlflow experiments restore --experiment-id {found.experiment_id}"
        raise ConfigurationError(f"the experiment {suite!r} is deleted", where=uri, hint=hint)
    return str(found.experiment_id)


def _artifacts(suite: str, uri: str) -> str | None:
    """Return the artifact folder next to a SQLite file, else `None`."""
    scheme, _, path = uri.partition(":///")
    if not scheme.startswith("sqlite") or not path:
        return None
    return (Path(path).resolve().parent / "mlartifacts" / suite).as_uri()


def _known(client: Any, experiment: str, first: float) -> dict[str, Any]:
    """Return the MLflow runs of these nights that already exist, by key."""
    known: dict[str, Any] = {}
    token = None
    while True:
        page = client.search_runs(
            [experiment], f"attributes.start_time >= {_milliseconds(first)}", max_results=_RUNS, page_token=token
        )
        known |= {run.data.tags[_KEY]: run for run in page if _KEY in run.data.tags}
        token = page.token
        if not token:
            return known


def _write(client: Any, experiment: str, central: CentralStore, run: NightRun) -> None:
    from mlflow.entities import Metric, Param

    name = " ".join(part for part in (run.round, run.platform, run.workload) if part)
    created = client.create_run(experiment, start_time=_milliseconds(run.time), tags={_KEY: run.key}, run_name=name)
    run_id, time = created.info.run_id, _milliseconds(run.time)
    record = central.find_record(run.record) if run.record else None  # the series has the numbers of a pruned one
    parameters = dict(run.stack) | (parameters_of(record) if record else {})
    pairs = [Param(_REFUSED.sub("_", key)[:250], value) for key, value in parameters.items()]
    points = [Metric(key, value, time, 0) for key, value in run.metrics.items()]
    for key, curve in (curves_of(record) if record else {}).items():
        points += [Metric(key, value, time, step) for step, value in curve]
    for start in range(0, len(pairs), _PARAMETERS):
        client.log_batch(run_id, params=pairs[start : start + _PARAMETERS])
    for start in range(0, len(points), _METRICS):
        client.log_batch(run_id, metrics=points[start : start + _METRICS])
    _describe(client, run_id, central, run)
    seconds = record.seconds if record else 0.0
    client.set_terminated(run_id, "FINISHED", end_time=_milliseconds(run.time + max(0.0, seconds)))


def _describe(client: Any, run_id: str, central: CentralStore, run: NightRun) -> None:
    """Write the report and the round's verdict to an MLflow run."""
    from mlflow.entities import RunTag

    if page := stored_report(central, run):
        client.log_text(run_id, page, _REPORT)
    tags = {
        "round": run.round, "platform": run.platform, "workload": run.workload, "causes": ", ".join(run.causes),
        "verdict": run.verdict,
    }  # fmt: skip
    client.log_batch(run_id, tags=[RunTag(f"plumbline.{name}", value) for name, value in tags.items()])


def _milliseconds(time: float) -> int:
    return round(time * 1000)
