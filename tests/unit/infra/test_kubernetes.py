"""Jobs of the template on the fake cluster: GPUs, image and quota decide which pod starts."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from plumbline.night.deployment import job_variables
from plumbline.schema.suite import Platform
from tests.fakekubernetes.cluster import ApiError, Cluster

TEMPLATE = Path(__file__).resolve().parents[3] / "infra/kubernetes/gpu-job-template.json"
IMAGE = "registry.example.org/plumbline@sha256:0"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, {IMAGE: {"PATH": "/usr/bin:/bin"}}, {"NVIDIA-A10G": 2})
    yield made
    made.close()


def job_of(command: str = "pass", **keys: Any) -> dict[str, Any]:
    """Return the job that Prefect's worker makes of the template, for a platform with these keys."""
    template = json.loads(TEMPLATE.read_text("utf-8"))
    platform = Platform.model_validate({"work_pool": "gke", "data": "file:///d", "outbox": "file:///o", **keys})
    variables = {name: item.get("default") for name, item in template["variables"]["properties"].items()}
    variables |= {"image": IMAGE, "name": "run", **(job_variables(platform) or {})}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [filled(inner) for inner in value]
        if isinstance(value, str) and (match := re.fullmatch(r"{{ (\w+) }}", value)):
            return variables[match[1]]
        return (
            re.sub(r"{{ (\w+) }}", lambda found: str(variables[found[1]]), value) if isinstance(value, str) else value
        )

    job = filled(template["job_configuration"]["job_manifest"])
    job["metadata"]["labels"] = job["spec"]["template"].setdefault("metadata", {})["labels"] = {"a": "b"}
    job["spec"]["template"]["spec"]["containers"][0]["args"] = [sys.executable, "-c", command]
    return job


def pods(cluster: Cluster) -> list[dict[str, Any]]:
    return [pod["status"] for pod in cluster.list("pods")]


def test_the_suites_gpus_are_those_of_the_pod_and_two_trainings_share_none(cluster: Cluster) -> None:
    cluster.create_job("plumbline", job_of("import time; time.sleep(60)", gpus=2))
    cluster.create_job("plumbline", job_of(gpus=1))
    assert [status["phase"] for status in pods(cluster)] == ["Running", "Pending"]
    assert pods(cluster)[1]["conditions"][0]["reason"] == "Unschedulable"
    cluster.delete_job(cluster.list("jobs")[0]["metadata"]["name"])
    until_over(cluster)
    assert cluster.list("jobs")[0]["status"]["succeeded"] == 1


def until_over(cluster: Cluster) -> None:
    deadline = time.monotonic() + 120
    while not {status["phase"] for status in pods(cluster)} <= {"Failed", "Succeeded"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_first_of_several_machines_executes_the_run_and_the_others_join_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin/python").chmod(0o755)
    cluster.images[IMAGE] = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    where = "import os; print('first', os.environ['PLUMBLINE_FIRST_NODE'])"
    job = cluster.create_job("plumbline", job_of(where, nodes=2, gpus=1))
    until_over(cluster)
    first, second = (cluster.log(pod["metadata"]["name"]) for pod in cluster.list("pods"))
    assert (first, second) == ("first 127.0.0.1:29400\n", "-m plumbline.tasks.join_node\n")
    assert find_spec("plumbline.tasks.join_node") is not None
    assert cluster.list("jobs")[0]["status"]["succeeded"] == 2
    # The name that Kubernetes gives the first pod under a headless service of this name.
    container = job["spec"]["template"]["spec"]["containers"][0]
    address = next(one["value"] for one in container["env"] if one["name"] == "PLUMBLINE_FIRST_NODE")
    assert address == f"$(PLUMBLINE_JOB)-0.{job['spec']['template']['spec']['subdomain']}:29400"


def test_a_training_ends_with_the_loss_of_one_of_its_machines(cluster: Cluster) -> None:
    cluster.create_job("plumbline", job_of("import time; time.sleep(60)", nodes=2, gpus=1))
    until_over(cluster)  # the second has no `python` on its path
    assert cluster.list("jobs")[0]["status"]["failed"] == 2


def test_a_nightly_pod_has_its_image_in_its_environment(cluster: Cluster) -> None:
    cluster.create_job("plumbline", job_of("import os; print(os.environ['PLUMBLINE_IMAGE'])"))
    name = cluster.list("pods")[0]["metadata"]["name"]
    deadline = time.monotonic() + 120
    while not cluster.log(name):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cluster.log(name) == f"{IMAGE}\n"


def test_an_image_that_is_not_there_and_a_quota_start_no_pod(cluster: Cluster) -> None:
    cluster.create_job("plumbline", job_of(job_variables={"image": "registry.example.org/gone:1"}))
    (container,) = pods(cluster)[0]["containerStatuses"]
    assert container["state"]["waiting"]["reason"] == "ImagePullBackOff"
    cluster.max_jobs = {"plumbline": 1}
    with pytest.raises(ApiError, match="exceeded quota") as refused:
        cluster.create_job("plumbline", job_of())
    assert refused.value.status == 403


def test_a_manifest_that_kubernetes_refuses_is_refused(cluster: Cluster) -> None:
    job = job_of()
    job["spec"]["template"]["spec"]["restartPolicy"] = "Sometimes"
    job["spec"]["template"]["spec"]["gpu"] = 1
    with pytest.raises(ApiError, match=r"unknown field gpu.*restartPolicy"):
        cluster.create_job("plumbline", job)
