"""A round through Prefect's own Kubernetes worker, on a fake Kubernetes API whose pods are processes.

The server, the worker with its observer, the template of `infra/kubernetes`, the flows and the trainings are real.
"""

from __future__ import annotations

import html
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun

from drills.expectations import expect_settled, open_client, read_controller_run, read_trainings
from drills.transcript import expect, say, wait_until
from plumbline.data.stores import open_store
from plumbline.local import services
from plumbline.local.process import MARK
from plumbline.local.stack import lock_in_use
from plumbline.night.central.outbox import read_untrusted
from plumbline.schema.record import RunRecord
from plumbline.schema.suite import Suite
from tests.fakekubernetes.cluster import Cluster
from tests.fakekubernetes.server import kubernetes_api, write_kubeconfig
from tests.flows.local_stack import RunningRound, RunningStack
from tests.flows.small_suite import small_suite

__all__ = ["DRILLS", "kubernetes"]

_ROOT = Path(__file__).resolve().parents[1]
_TEMPLATE = _ROOT / "infra/kubernetes/gpu-job-template.json"
_TOOLS = _ROOT / ".venv/kubernetes-tools"
_IMAGE = "registry.example.org/plumbline@sha256:" + "0" * 64
_GONE = "registry.example.org/gone@sha256:" + "1" * 64
_POOL, _PRODUCT = "gke-gpu", "NVIDIA-A10G"
_PRINTED = "library: a deprecated call"
_LIBRARY = f"""import sys
if any("'plumbline.train'" in word for word in sys.orig_argv):
    print({_PRINTED!r}, file=sys.stderr)
"""
_FULL = "plumbline-full"
"""Namespace whose quota is used up."""
_REASONS = {"gke-image": ("Image pull failed", _GONE), "gke-quota": ("exceeded quota: gpu-jobs",)}
"""By platform what its reason has to name."""


def kubernetes(stack: RunningStack) -> None:
    """In one round a pod is evicted, an image cannot be pulled, a quota refuses a job, and two pods train together."""
    _install_worker()
    state = stack.stack.state
    cluster = Cluster(state / "pods", {_IMAGE: _image_environment(stack)}, {_PRODUCT: 4})
    cluster.max_jobs = {_FULL: 0}
    (state / "pods").mkdir(exist_ok=True)
    (state / "pods/sitecustomize.py").write_text(_LIBRARY, encoding="utf-8")
    with kubernetes_api(cluster) as address, _worker(stack, address), open_client(stack) as client:
        _create_pool(client)
        wait_until(lambda: any(client.read_workers_for_work_pool(_POOL)), "the Kubernetes worker is online", 60)
        suite = _suite(stack)
        round_ = stack.start_round(suite)
        round_.until("gke", "trains probe", 400)
        (run,) = read_trainings(client, round_.round_id, "platform:gke")
        cluster.evict(str(run.id))
        say("the pod of gke is evicted while it trains")
        verdict = round_.verdict(600)
        expect(verdict["verdict"] == "inconclusive", f"verdict inconclusive (is {verdict['verdict']})")
        expect(round_.child.returncode == 3, f"exit code 3 (is {round_.child.returncode})")
        _expect_unharmed(client, cluster, suite, verdict, run)
        _expect_two_machines(cluster, suite, verdict)
        for name, words in _REASONS.items():
            _expect_unavailable(client, round_, verdict, name, words)
        expect_settled(stack, round_, verdict)


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
        "PYTHONPATH": str(stack.stack.state / "pods"),
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
        "PREFECT_WORKER_ENABLE_CANCELLATION": "true", "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "10",
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


def _suite(stack: RunningStack) -> Suite:
    state = stack.stack.state
    limits = {"start_seconds": 240, "run_seconds": 600}
    base = small_suite(state, "drill-kubernetes", ("aws",), steps=150, **limits)
    own = {"work_pool": _POOL, "data": f"file://{state}/gke/data", "outbox": f"file://{state}/gke/outbox", **limits}
    pods = {
        "gke-nodes": {"nodes": 2},
        "gke": {"job_variables": {"memory": "16Gi"}},
        "gke-image": {"start_seconds": 30, "retries": 0, "job_variables": {"image": _GONE}},
        "gke-quota": {"job_variables": {"namespace": _FULL}},
    }  # fmt: skip
    content = base.model_dump(mode="json", exclude_none=True)
    return Suite.model_validate(
        {**content, "platforms": {**content["platforms"], **{name: {**own, **keys} for name, keys in pods.items()}}}
    )


def _expect_unharmed(
    client: SyncPrefectClient, cluster: Cluster, suite: Suite, verdict: dict[str, Any], run: FlowRun
) -> None:
    """Check that the evicted pod's training was repeated, and what its record and its log have."""
    result = verdict["platforms"]["gke"]
    expect(result["verdict"] == "pass" == verdict["platforms"]["aws"]["verdict"], "gke and aws pass")
    notes = [note["text"] for note in result["notes"]]
    expect(any("lost its machine, and was scheduled again" in note for note in notes), f"gke says so: {notes}")
    gke, aws = (_record(suite, verdict, name) for name in ("gke", "aws"))
    expect(gke.attempt == 0, "the second pod is the same attempt")
    expect(_evidence(gke) == _evidence(aws), "the evidence is that of the platform without an eviction, bit by bit")
    expect(gke.fingerprint.container_image == _IMAGE, "the record names the pod's image")
    jobs = [job for job in cluster.list("jobs") if job["metadata"]["labels"]["prefect.io/flow-run-id"] == str(run.id)]
    limits = [job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] for job in jobs]
    expect([limit["memory"] for limit in limits] == ["16Gi", "16Gi"], "two pods, each with the suite's job variables")
    log = _log(client, run)
    trained = [line for line in log if line.startswith("probe")]
    expect(trained.count("probe 0/150") == 2, f"both pods' progress is in Prefect's log of the run: {trained}")
    printed = [line for line in log if line == _PRINTED]
    expect(len(printed) == 2, f"and so is what a library printed in each training: {_PRINTED!r}")


def _expect_two_machines(cluster: Cluster, suite: Suite, verdict: dict[str, Any]) -> None:
    """Check that one training took two pods, and left one record."""
    result = verdict["platforms"]["gke-nodes"]
    expect(result["verdict"] == "pass", f"gke-nodes passes (is {result['verdict']} {result['unavailable']})")
    record = _record(suite, verdict, "gke-nodes")
    topology = record.fingerprint.topology
    expect(topology["nodes"] == "2" == topology["processes"], f"its record is that of two machines: {topology}")
    (job,) = [job for job in cluster.list("jobs") if job["spec"]["completions"] == 2]
    expect(job["status"]["succeeded"] == 2, "both pods of its job have succeeded")


def _expect_unavailable(
    client: SyncPrefectClient, round_: RunningRound, verdict: dict[str, Any], platform: str, words: tuple[str, ...]
) -> None:
    """Check that one line names the reason, in the verdict, the report, the command's output and Prefect's logs."""
    result = verdict["platforms"][platform]
    reason = result["unavailable"]
    expect(result["verdict"] == "inconclusive", f"{platform} is inconclusive (is {result['verdict']})")
    expect(all(word in reason for word in words) and "\n" not in reason, f"{platform} is unavailable: {reason}")
    page = html.unescape(Path(verdict["report"].removeprefix("file://")).read_text(encoding="utf-8"))
    expect(reason[:140] in page, "its reason is in the report")
    logged = " ".join(" ".join(_log(client, read_controller_run(client, round_))).split())
    expect(f"{platform}: {reason}"[:140] in logged, "and in Prefect's log of the round")
    (*_, run) = read_trainings(client, round_.round_id, f"platform:{platform}")
    named = [line for line in _log(client, run) if words[0] in line]
    expect(bool(named), f"and in that of its run: {named[:1]}")


def _log(client: SyncPrefectClient, run: FlowRun) -> list[str]:
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id]))
    return [log.message for log in client.read_logs(wanted, limit=200)]


def _record(suite: Suite, verdict: dict[str, Any], platform: str) -> RunRecord:
    (name,) = verdict["platforms"][platform]["records"]
    return read_untrusted(open_store(suite.store), name)[0]


def _evidence(record: RunRecord) -> list[str]:
    assert record.evidence.probe is not None
    return [step.weights for step in record.evidence.probe.steps_of()]
