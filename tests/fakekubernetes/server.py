"""HTTP server of the fake Kubernetes API: discovery, lists, watches, jobs, and logs of pods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakekubernetes.cluster import ApiError, Cluster
from tests.http_server import Handler, serving

_VERBS = ["create", "delete", "get", "list", "patch", "watch"]
_KINDS = {"pods": "Pod", "events": "Event", "jobs": "Job", "namespaces": "Namespace"}
_PATH = re.compile(
    r"/(?:api/v1|apis/batch/v1)(?:/namespaces/(?P<ns>[^/]+))?/(?P<kind>\w+)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
_WATCH_SECONDS = 300.0


def _resources(group: str, *names: str) -> dict[str, Any]:
    rows = [
        {"name": name, "kind": _KINDS[name], "singularName": "", "namespaced": name != "namespaces", "verbs": _VERBS}
        for name in names
    ]
    return {"kind": "APIResourceList", "groupVersion": group, "resources": rows}


_BATCH = {"groupVersion": "batch/v1", "version": "v1"}
_DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "groups": [{"name": "batch", "versions": [_BATCH], "preferredVersion": _BATCH}]},
    "/apis/batch": {"kind": "APIGroup", "name": "batch", "versions": [_BATCH], "preferredVersion": _BATCH},
    "/api/v1": _resources("v1", "pods", "events", "namespaces"),
    "/apis/batch/v1": _resources("batch/v1", "jobs"),
    "/version": {"major": "1", "minor": "33", "gitVersion": "v1.33.0"},
}


class _Handler(Handler):
    cluster: Cluster

    def _answer(self, content: Any, status: int = 200) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.reply(status, body, {"Content-Type": "text/plain" if isinstance(content, str) else "application/json"})

    def answer(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        body = json.loads(self.body() or b"{}")
        try:
            self._route(self.command, url.path, query, body)
        except ApiError as error:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": error.status}
            self._answer({**status, "reason": error.reason, "message": str(error)}, error.status)

    def _route(self, method: str, path: str, query: dict[str, str], body: Any) -> None:
        if path in _DISCOVERY:
            self._answer(_DISCOVERY[path])
        elif (match := _PATH.fullmatch(path)) is None:
            raise ApiError(404, "NotFound", f"{path} not found")
        elif method == "GET" and match["log"]:
            self._answer(self.cluster.log(match["name"]))
        elif method == "GET" and query.get("watch") in {"true", "True", "1"}:
            self._watch(match["kind"], query)
        elif method == "GET":
            self._get(match["kind"], match["name"], query)
        elif method == "POST" and match["kind"] == "events":
            self._answer(body, 201)
        elif method == "POST" and match["kind"] == "jobs":
            self._answer(self.cluster.create_job(match["ns"], body), 201)
        elif method == "DELETE" and match["kind"] == "jobs":
            self._answer(self.cluster.delete_job(match["name"]))
        else:
            raise ApiError(405, "MethodNotAllowed", f"{method} {path}")

    def _get(self, kind: str, name: str | None, query: dict[str, str]) -> None:
        items = [item for item in self.cluster.list(kind) if _selected(item, query.get("labelSelector", ""))]
        if name is None:
            version = str(len(self.cluster.changes))
            self._answer({"kind": f"{_KINDS[kind]}List", "metadata": {"resourceVersion": version}, "items": items})
            return
        found = [item for item in items if item["metadata"]["name"] == name]
        if not found:
            raise ApiError(404, "NotFound", f'{kind} "{name}" not found')
        self._answer(found[0])

    def _watch(self, kind: str, query: dict[str, str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        seconds = min(float(query.get("timeoutSeconds", _WATCH_SECONDS)), _WATCH_SECONDS)
        with suppress(OSError):
            for event, item in self.cluster.since(kind, int(query.get("resourceVersion") or 0), seconds):
                if _selected(item, query.get("labelSelector", "")):
                    line = json.dumps({"type": event, "object": item}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")


def _selected(item: dict[str, Any], selector: str) -> bool:
    """Return whether an object has the labels of a selector of the forms `KEY` and `KEY=VALUE`."""
    labels = item["metadata"].get("labels", {})
    for part in filter(None, selector.split(",")):
        key, _, value = part.partition("=")
        if key not in labels or (value and labels[key] != value):
            return False
    return True


@contextmanager
def kubernetes_api(cluster: Cluster) -> Iterator[str]:
    """Serve the cluster on loopback; yield the API's address."""
    handler = type("Handler", (_Handler,), {"cluster": cluster})
    with serving(handler) as url:
        try:
            yield url
        finally:
            cluster.close()


def write_kubeconfig(path: Path, address: str) -> None:
    """Write a kubeconfig for the API, which asks for no credential."""
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": address}}],
        "users": [{"name": "fake", "user": {"token": "fake"}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "plumbline"}}],
    }  # fmt: skip
    path.write_text(json.dumps(content), encoding="utf-8")
