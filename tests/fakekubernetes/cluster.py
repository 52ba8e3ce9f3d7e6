"""Cluster of a fake Kubernetes API: jobs, pods, nodes with GPUs, images, quotas and evictions.

What Prefect's Kubernetes worker and its observer use is there: a job makes its pods, each pod waits for a node of its
selector with enough GPUs and for its image, then its command runs as a process, and the job ends as its pods did. All
pods share one address, so that a name of the cluster's DNS in a pod's variables is that address.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

Object = dict[str, Any]
_GPU = "nvidia.com/gpu"
_GRACE_SECONDS = 30.0
_POD_KEYS = {
    "containers", "restartPolicy", "serviceAccountName", "terminationGracePeriodSeconds", "nodeSelector", "tolerations",
    "securityContext", "volumes", "subdomain",
    # Kubernetes ignores these two with a warning; prefect-kubernetes demands them.
    "parallelism", "completions",
}  # fmt: skip


class ApiError(Exception):
    """Answer of the API with an HTTP status."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass
class _Pod:
    """A pod with its process."""

    object: Object
    job: str
    process: subprocess.Popen[bytes] | None = None
    log: Path = field(default_factory=Path)
    evicted: bool = False

    @property
    def gpus(self) -> int:
        return int(self.object["spec"]["containers"][0]["resources"]["limits"].get(_GPU, 0))


class Cluster:
    """Jobs and pods; `changes` has every event since the start, for watches."""

    def __init__(self, folder: Path, images: Mapping[str, Mapping[str, str]], nodes: Mapping[str, int]) -> None:
        self.images = dict(images)
        """Environment of the processes of each image that can be pulled."""
        self.nodes = dict(nodes)
        """GPUs by the node's label `nvidia.com/gpu.product`."""
        self.max_jobs: dict[str, int] = {}
        """Quota of unfinished jobs by namespace."""
        self.changed = threading.Condition(threading.RLock())
        self.changes: list[tuple[str, str, Object]] = []
        """Kind, type and object of every event; its place is the resource version."""
        self._folder = folder
        self._jobs: dict[str, Object] = {}
        self._pods: dict[str, _Pod] = {}

    def list(self, kind: str) -> list[Object]:
        """Return the objects of a kind, `jobs` or `pods`."""
        with self.changed:
            return list(self._jobs.values()) if kind == "jobs" else [pod.object for pod in self._pods.values()]

    def log(self, pod: str) -> str:
        """Return what a pod's process has printed."""
        with self.changed:
            path = self._pods[pod].log
        return path.read_text(errors="replace") if path.is_file() else ""

    def create_job(self, namespace: str, job: Object) -> Object:
        """Create a job and its pod; raise `ApiError` for what the API refuses."""
        _validate(job)
        with self.changed:
            own = [each for each in self._jobs.values() if each["metadata"]["namespace"] == namespace]
            active, limit = sum(not _is_over(each) for each in own), self.max_jobs.get(namespace)
            if limit is not None and active >= limit:
                text = f"exceeded quota: gpu-jobs, requested: count/jobs.batch=1, used: {active}, limited: {limit}"
                raise ApiError(403, "Forbidden", f"jobs.batch is forbidden: {text}")
            name = f"{job['metadata']['generateName']}{uuid4().hex[:5]}"
            made = {**job, "metadata": _metadata(job["metadata"], name, namespace), "status": {"active": 1}}
            self._jobs[name] = made
            self._emit("jobs", "ADDED", made)
            for index in range(job["spec"]["completions"]):
                self._create_pod(name, namespace, job["spec"]["template"], index)
        self.schedule()
        return made

    def delete_job(self, name: str) -> Object:
        """Delete a job and its pods: their processes get SIGTERM."""
        with self.changed:
            if name not in self._jobs:
                raise ApiError(404, "NotFound", f'jobs.batch "{name}" not found')
            job = self._jobs.pop(name)
            for pod in [pod for pod in self._pods.values() if pod.job == name]:
                self._terminate(pod)
            self._emit("jobs", "DELETED", job)
        return job

    def evict(self, flow_run: str) -> None:
        """Evict the first running pod of a flow run, as a drained node does: SIGTERM, then a failed pod."""
        with self.changed:
            pod, *_ = [
                pod
                for pod in self._pods.values()
                if pod.object["metadata"]["labels"].get("prefect.io/flow-run-id") == flow_run
                and pod.object["status"]["phase"] == "Running"
            ]
            pod.evicted = True
            self._terminate(pod)

    def schedule(self) -> None:
        """Start the pods for which a node and an image are there."""
        with self.changed:
            for pod in self._pods.values():
                if pod.process is None and pod.object["status"]["phase"] == "Pending":
                    self._start(pod)

    def close(self) -> None:
        """End all processes."""
        with self.changed:
            for pod in self._pods.values():
                if pod.process is not None and pod.process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(pod.process.pid, signal.SIGKILL)
                    pod.process.wait()

    def _create_pod(self, job: str, namespace: str, template: Object, index: int) -> None:
        name = f"{job}-{index}-{uuid4().hex[:5]}"
        labels = {**template["metadata"]["labels"], "job-name": job, "batch.kubernetes.io/job-name": job}
        annotations = {"batch.kubernetes.io/job-completion-index": str(index)}
        metadata = _metadata({**template["metadata"], "labels": labels, "annotations": annotations}, name, namespace)
        pod = _Pod({
            "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"],
            "status": {"phase": "Pending", "containerStatuses": []},
        }, job)  # fmt: skip
        pod.log = self._folder / f"{name}.log"
        self._pods[name] = pod
        self._emit("pods", "ADDED", pod.object)

    def _start(self, pod: _Pod) -> None:
        """Start the pod's process, or say in its status why it waits."""
        container, status = pod.object["spec"]["containers"][0], pod.object["status"]
        product = pod.object["spec"]["nodeSelector"]["nvidia.com/gpu.product"]
        used = sum(other.gpus for other in self._pods.values() if other.object["status"]["phase"] == "Running")
        if self.nodes.get(product, 0) - used < pod.gpus:
            text = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient {_GPU}."
            waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}
            self._set(pod, {**status, "conditions": [waits]})
            return
        if container["image"] not in self.images:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{container["image"]}"'}
            self._set(pod, {**status, "containerStatuses": [_container(container, waiting=waiting)]})
            return
        environment = {**self.images[container["image"]], **_variables(pod.object)}
        with pod.log.open("wb") as log:
            pod.process = subprocess.Popen(
                [*container.get("command", []), *container["args"]], env=environment, stdout=log,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True, cwd=self._folder,
            )  # fmt: skip
        self._set(
            pod, {"phase": "Running", "containerStatuses": [_container(container, running={"startedAt": _now()})]}
        )
        threading.Thread(target=self._reap, args=(pod, pod.process), daemon=True).start()

    def _terminate(self, pod: _Pod) -> None:
        """Send SIGTERM to the container's first process, and SIGKILL to all of it after the grace period."""
        if pod.process is None or pod.process.poll() is not None:
            self._pods.pop(pod.object["metadata"]["name"], None)
            self._emit("pods", "DELETED", pod.object)
            return
        process = pod.process
        process.terminate()
        kill = threading.Timer(
            _GRACE_SECONDS, lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL)
        )
        kill.daemon = True
        kill.start()

    def _reap(self, pod: _Pod, process: subprocess.Popen[bytes]) -> None:
        """Wait for the pod's process; end what it left behind, its pod and its job."""
        code = process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with self.changed:
            container = pod.object["spec"]["containers"][0]
            reason = "Completed" if code == 0 else "Error"
            ended = _container(container, terminated={"exitCode": abs(code), "reason": reason, "finishedAt": _now()})
            is_good = code == 0 and not pod.evicted
            more = {"reason": "Evicted", "message": "The node was drained."} if pod.evicted else {}
            self._set(pod, {"phase": "Succeeded" if is_good else "Failed", "containerStatuses": [ended], **more})
            self._end_job(pod.job, is_good=is_good)
        self.schedule()

    def _end_job(self, name: str, *, is_good: bool) -> None:
        """End a job whose pods have all succeeded, or one of whose pods has failed: then the others are terminated."""
        job = self._jobs.get(name)
        if job is None or _is_over(job):
            return
        own = [pod for pod in self._pods.values() if pod.job == name]
        if is_good and any(pod.object["status"]["phase"] != "Succeeded" for pod in own):
            return
        condition = {"type": "Complete" if is_good else "Failed", "status": "True"}
        job["status"] = {"succeeded" if is_good else "failed": len(own), "conditions": [condition]}
        self._emit("jobs", "MODIFIED", job)
        for pod in [pod for pod in own if pod.object["status"]["phase"] in {"Pending", "Running"}]:
            self._terminate(pod)

    def _set(self, pod: _Pod, status: Object) -> None:
        if pod.object["status"] != status:
            pod.object["status"] = status
            self._emit("pods", "MODIFIED", pod.object)

    def _emit(self, kind: str, event: str, item: Object) -> None:
        with self.changed:
            item["metadata"]["resourceVersion"] = str(len(self.changes) + 1)
            self.changes.append((kind, event, {**item, "metadata": dict(item["metadata"])}))
            self.changed.notify_all()

    def since(self, kind: str, version: int, seconds: float) -> Iterator[tuple[str, Object]]:
        """Yield the events of a kind after a resource version, as they come, for so many seconds."""
        deadline = datetime.now(UTC).timestamp() + seconds
        while (left := deadline - datetime.now(UTC).timestamp()) > 0:
            with self.changed:
                if version >= len(self.changes):
                    self.changed.wait(min(left, 1.0))
                fresh, version = self.changes[version:], len(self.changes)
            yield from ((event, item) for of, event, item in fresh if of == kind)


def _validate(job: Object) -> None:
    """Raise `ApiError` for a manifest that the API of Kubernetes refuses, or that this cluster does not carry out."""
    try:
        pod = job["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        resources = container["resources"]
        problems = [
            *(f"spec.template.spec: unknown field {key}" for key in pod.keys() - _POD_KEYS),
            *(
                f"spec.template.spec.containers[0].env: {one}"
                for one in container["env"]
                if set(one) not in ({"name", "value"}, {"name", "valueFrom"})
            ),
            *(["apiVersion, kind"] if (job["apiVersion"], job["kind"]) != ("batch/v1", "Job") else []),
            *(["completionMode"] if job["spec"]["completionMode"] != "Indexed" else []),
            *(["parallelism"] if job["spec"]["parallelism"] != job["spec"]["completions"] else []),
            *(["restartPolicy"] if pod["restartPolicy"] not in {"Never", "OnFailure"} else []),
            *(["limits of nvidia.com/gpu"] if resources["limits"].get(_GPU) != resources["requests"].get(_GPU) else []),
            *(["image"] if not container["image"] else []),
        ]
    except (KeyError, TypeError, ValueError) as error:
        problems = [f"{type(error).__name__}: {error}"]
    if problems:
        raise ApiError(422, "Invalid", f"Job is invalid: {'; '.join(problems)}")


def _variables(pod: Object) -> dict[str, str]:
    """Return the variables of a pod's container, with its fields and with references to earlier variables."""
    metadata, container = pod["metadata"], pod["spec"]["containers"][0]
    values = {"JOB_COMPLETION_INDEX": metadata["annotations"]["batch.kubernetes.io/job-completion-index"]}
    hosts = re.compile(rf"[\w.-]+\.{re.escape(pod['spec']['subdomain'])}\b")
    for one in container["env"]:
        if "value" in one:
            text = re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), one["value"])
        else:
            label = re.fullmatch(r"metadata\.labels\['(.+)'\]", one["valueFrom"]["fieldRef"]["fieldPath"])
            text = metadata["labels"][label[1]] if label else ""
        values[one["name"]] = hosts.sub("127.0.0.1", text)
    return values


def _metadata(given: Object, name: str, namespace: str) -> Object:
    made = {"name": name, "namespace": namespace, "uid": str(uuid4()), "creationTimestamp": _now()}
    return {"labels": {}, **given, **made}


def _container(container: Object, **state: Object) -> Object:
    return {"name": container["name"], "image": container["image"], "restartCount": 0, "ready": False, "state": state}


def _is_over(job: Object) -> bool:
    return not job["status"].get("active")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
