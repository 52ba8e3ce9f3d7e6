"""Rounds through Prefect's own Kubernetes worker, on a fake Kubernetes API whose pods are processes.

The server, the worker with its observer, the template of `infra/kubernetes`, the flows and the trainings are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

from drills.expectations import expect_no_leftovers, expect_pass, open_client, read_trainings
from drills.transcript import expect, say, wait_until
from plumbline.central import CentralStore
from plumbline.central.outbox import checked_record, record_key
from plumbline.localstack import services
from plumbline.localstack.process import MARK
from plumbline.localstack.resources import lock_in_use
from plumbline.schema.record import MAX_RECORD_BYTES, RunRecord
from plumbline.schema.suite import Suite
from plumbline.stores import open_store, read_bytes
from tests.fakekubernetes.cluster import Cluster
from tests.fakekubernetes.server import kubernetes_api, write_kubeconfig
from tests.flows.local_stack import RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["DRILLS", "kubernetes"]

_ROOT = Path(__file__).resolve().parents[1]
_TEMPLATE = _ROOT / "infra/kubernetes/gpu-job-template.json"
_TOOLS = _ROOT / ".venv/kubernetes-tools"
_IMAGE = "registry.example.org/plumbline@sha256:" + "0" * 64
_POOL, _PRODUCT = "gke-gpu", "NVIDIA-A10G"


def kubernetes(stack: RunningStack) -> None:
    """A pod is evicted, an image cannot be pulled, and a quota refuses the job."""
    _install_worker()
    state = stack.stack.state
    cluster = Cluster(state / "pods", {_IMAGE: _image_environment(stack)}, {_PRODUCT: 1})
    (state / "pods").mkdir(exist_ok=True)
    with kubernetes_api(cluster) as address, _worker(stack, address):
        with open_client(stack) as client:
            _create_pool(client)
            wait_until(lambda: any(client.read_workers_for_work_pool(_POOL)), "the Kubernetes worker is online", 60)
        _evicted(stack, cluster)
        _not_pulled(stack)
        cluster.max_jobs = 0
        _over_quota(stack)


DRILLS = (kubernetes,)


def _install_worker() -> None:
    """Install Prefect's Kubernetes worker beside the environment's Prefect, once."""
    if not (_TOOLS / "prefect_kubernetes").is_dir():
        requirements = Path(__file__).with_name("kubernetes-requirements.txt")
        options = [
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
            str(_TOOLS),
            "--requirement",
            str(requirements),
        ]
        subprocess.run([sys.executable, "-m", "pip", "install", *options], check=True)


def _image_environment(stack: RunningStack) -> dict[str, str]:
    """Return what the worker image brings along: the programs, a cache, and the marks by which a drill ends it."""
    inherited = services.inherited()
    return {
        **inherited,
        "PATH": f"{Path(sys.executable).parent}:{inherited['PATH']}",
        "OMP_NUM_THREADS": "1",
        "PLUMBLINE_CACHE": str(stack.stack.state / "cache" / "gke"),
        "PLUMBLINE_LOCK": str(lock_in_use()),
        "PREFECT_HOME": str(stack.stack.state / "workers" / "gke-pods"),
        MARK: stack.stack.mark,
    }


def _create_pool(client: SyncPrefectClient) -> None:
    """Create the work pool as infra/kubernetes/README.md does."""
    template = json.loads(_TEMPLATE.read_text(encoding="utf-8"))
    template["variables"]["properties"]["image"]["default"] = _IMAGE
    client.create_work_pool(WorkPoolCreate(name=_POOL, type="kubernetes", base_job_template=template))


@contextmanager
def _worker(stack: RunningStack, address: str) -> Iterator[None]:
    state = stack.stack.state
    write_kubeconfig(state / "kubeconfig", address)
    environment = {
        **stack.stack.environment(), "PYTHONPATH": str(_TOOLS), "KUBECONFIG": str(state / "kubeconfig"),
        "PREFECT_HOME": str(state / "workers" / "gke"), "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES": "plumbline",
    }  # fmt: skip
    command = ["-m", "prefect", "worker", "start", "--pool", _POOL, "--type", "kubernetes", "--name", "gke-1"]
    with (state / "logs" / "worker-gke.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *command], env=environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


def _suite(stack: RunningStack, name: str, *, steps: int = 6, **gke: Any) -> Suite:
    state = stack.stack.state
    limits = {"start_seconds": 240, "run_seconds": 600}
    base = small_suite(state, name, ("aws",), steps=steps, **limits).model_dump(mode="json", exclude_none=True)
    own = {
        "work_pool": _POOL, "data": f"file://{state}/gke/data", "outbox": f"file://{state}/gke/outbox",
        **limits, **gke,
    }  # fmt: skip
    return Suite.model_validate({**base, "platforms": {**base["platforms"], "gke": own}})


def _evicted(stack: RunningStack, cluster: Cluster) -> None:
    suite = _suite(stack, "drill-evicted", steps=150, job_variables={"memory": "16Gi"})
    round_ = stack.start_round(suite)
    round_.until("gke", "trains probe", 300)
    with open_client(stack) as client:
        (run,) = read_trainings(client, round_.round_id, "platform:gke")
    cluster.evict(str(run.id))
    say("the pod of gke is evicted while it trains")
    verdict = expect_pass(stack, round_, notes="lost its machine, and was scheduled again", platform="gke", seconds=600)
    gke, aws = (_record(suite, verdict, name) for name in ("gke", "aws"))
    expect(gke.attempt == 0, "the second pod is the same attempt")
    expect(_evidence(gke) == _evidence(aws), "the evidence is that of the platform without an eviction, bit by bit")
    expect(gke.fingerprint.container_image == _IMAGE, "the record names the pod's image")
    jobs = [job for job in cluster.list("jobs") if job["metadata"]["labels"]["prefect.io/flow-run-id"] == str(run.id)]
    limits = [job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] for job in jobs]
    expect([limit["memory"] for limit in limits] == ["16Gi", "16Gi"], "two pods, each with the suite's job variables")
    with open_client(stack) as client:
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])), limit=200)
    said = [log.message for log in logs]
    expect(sum(line.startswith("probe") for line in said) > 1, "both pods' output is in Prefect's log of the run")


def _not_pulled(stack: RunningStack) -> None:
    missing = "registry.example.org/gone@sha256:" + "1" * 64
    _expect_unavailable(
        stack, _suite(stack, "drill-image", start_seconds=30, retries=0, job_variables={"image": missing}),
        "Image pull failed", missing,
    )  # fmt: skip


def _over_quota(stack: RunningStack) -> None:
    _expect_unavailable(stack, _suite(stack, "drill-quota", retries=1), "exceeded quota: gpu-jobs")


def _expect_unavailable(stack: RunningStack, suite: Suite, *words: str) -> None:
    round_ = stack.start_round(suite)
    began = time.monotonic()
    verdict = round_.verdict(480)
    result = verdict["platforms"]["gke"]
    expect(verdict["verdict"] == "inconclusive", f"verdict inconclusive (is {verdict['verdict']})")
    reason = result["unavailable"]
    expect(all(word in reason for word in words) and "\n" not in reason, f"gke is unavailable: {reason}")
    expect(verdict["platforms"]["aws"]["verdict"] == "pass", "aws is judged all the same")
    expect_no_leftovers(stack, round_.round_id)
    say(f"after {time.monotonic() - began:.0f} s")


def _record(suite: Suite, verdict: dict[str, Any], platform: str) -> RunRecord:
    (name,) = verdict["platforms"][platform]["records"]
    store = CentralStore(open_store(suite.store)).store
    return checked_record(read_bytes(store, record_key(name), max_bytes=MAX_RECORD_BYTES), name, store.url)


def _evidence(record: RunRecord) -> list[str]:
    assert record.evidence.probe is not None
    return [step.weights_sha256 for step in record.evidence.probe.steps]
