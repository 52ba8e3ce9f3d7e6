"""Template of a training's job on Kubernetes: its variables, GPUs and permissions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from plumbline.schema.suite import read_suite

ROOT = Path(__file__).resolve().parents[3]
INFRA = ROOT / "infra"
POD_KEYS = {
    "containers", "nodeSelector", "restartPolicy", "securityContext", "serviceAccountName", "tolerations", "volumes",
    "terminationGracePeriodSeconds", "subdomain",
}  # fmt: skip
JOB_KEYS = {
    "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "template", "completionMode", "completions",
    "parallelism",
}  # fmt: skip


def filled(template, values):
    """Return the manifest with placeholders filled in like Prefect."""
    if isinstance(template, dict):
        return {key: filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    if isinstance(template, str) and (found := re.fullmatch(r"\{\{ (\w+) \}\}", template)):
        return values[found[1]]
    return (
        re.sub(r"\{\{ (\w+) \}\}", lambda found: str(values[found[1]]), template)
        if isinstance(template, str)
        else template
    )


@pytest.fixture(scope="module")
def template():
    return json.loads((INFRA / "kubernetes" / "gpu-job-template.json").read_text())


def test_the_job_template_and_its_variables_fit_together(template):
    properties = template["variables"]["properties"]
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
    assert used == set(properties)
    # The worker's own command alone starts a flow run: whoever makes a deployment chooses none.
    assert "command" not in used
    assert "command" not in template["job_configuration"]
    jsonschema.Draft202012Validator.check_schema(template["variables"])
    defaults = {name: item["default"] for name, item in properties.items() if "default" in item}
    assert set(properties) - set(defaults) == set(template["variables"]["required"]) == {"image"}
    jsonschema.validate({**defaults, "image": "registry/worker:1"}, template["variables"])
    for wrong in ({"gpus": 0}, {"image": ""}, {"shm_size": "8"}, {"memory": "lots"}, {"pod_watch_timeout_seconds": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**defaults, "image": "registry/worker:1", **wrong}, template["variables"])


def test_the_job_gives_one_training_its_gpu_and_repeats_nothing(template):
    defaults = {name: item.get("default") for name, item in template["variables"]["properties"].items()}
    values = {**defaults, "image": "registry/worker:1", "name": "run", "gpus": 2}
    job = filled(template["job_configuration"]["job_manifest"], values)
    assert "{{" not in json.dumps(job)
    assert (job["apiVersion"], job["kind"], job["spec"]["backoffLimit"]) == ("batch/v1", "Job", 0)
    pod = job["spec"]["template"]["spec"]
    assert set(job["spec"]) == JOB_KEYS
    # prefect-kubernetes asks for these two here, where Kubernetes ignores them.
    assert set(pod) - {"parallelism", "completions"} == POD_KEYS
    container = pod["containers"][0]
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    # Prefect's worker adds these to its own variables, because they are a list.
    assert container["env"][0] == {"name": "PLUMBLINE_IMAGE", "value": "registry/worker:1"}
    suite = read_suite(ROOT / "deployments" / "suites" / "cross-cloud.toml")
    assert values["pod_watch_timeout_seconds"] >= max(place.start_seconds for place in suite.platforms.values())
    volumes = {volume["name"]: volume["emptyDir"] for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert volumes[mounts["/dev/shm"]] == {"medium": "Memory", "sizeLimit": "8Gi"}  # noqa: S108 - the pod's
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A10G"}
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert pod["restartPolicy"] == "Never"
    assert pod["securityContext"]["runAsNonRoot"]
