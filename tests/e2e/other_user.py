"""Attack of a different user of the machine on a running stack: a program of the standard library alone.

Its argument is JSON: [project folder, API address, [S3 address, Blob address], process ids]. It prints as JSON what it
could do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Action = Callable[[], Any]
NO_FLOW = {"id": "00000000-0000-0000-0000-000000000000"}
OLD_KEY = {"Authorization": "AWS4-HMAC-SHA256 Credential=plumbline/20260101/us-east-1/s3/aws4_request"}
GUESS = {"Authorization": "Basic cGx1bWJsaW5lOnBsdW1ibGluZQ=="}


def ask(url: str, body: Any = None, method: str = "", headers: dict[str, str] | None = None) -> bytes:
    """Return the body of an answer; raise for a refusal."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(url, data, sent, method=method or None)  # noqa: S310 - loopback
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - loopback
        content: bytes = answer.read()
        return content


def start_run(api: str) -> None:
    """Make a flow, if that is allowed, and start a run of it."""
    try:
        flow = json.loads(ask(f"{api}/flows/", {"name": "x"}))
    except urllib.error.HTTPError:
        flow = NO_FLOW
    ask(f"{api}/flow_runs/", {"flow_id": flow["id"], "name": "x"})


def on_servers(api: str, s3: str, blob: str) -> Iterator[tuple[str, Action]]:
    """Yield (name, action) of each attack on a loopback port."""
    yield "read flow runs", lambda: ask(f"{api}/flow_runs/filter", {})
    yield "read blocks", lambda: ask(f"{api}/block_documents/filter", {"include_secrets": True})
    yield "start a flow run", lambda: start_run(api)
    yield "guess the login", lambda: ask(f"{api}/flow_runs/filter", {}, headers=GUESS)
    for headers in ({}, OLD_KEY):
        yield "list buckets", lambda headers=headers: ask(f"{s3}/", headers=headers)
        yield "write an object", lambda headers=headers: ask(f"{s3}/outbox/x", {}, "PUT", headers)
        yield "empty the store", lambda headers=headers: ask(f"{s3}/moto-api/reset", {}, "POST", headers)
    yield "list containers", lambda: ask(f"{blob}/devstoreaccount1?comp=list")


def on_files(project: Path) -> Iterator[tuple[str, Action]]:
    """Yield (name, action) of each attack on the project's folder, and on what lies in the common temporary folder."""
    yield "list the project", lambda: list(project.iterdir())
    yield "list the state", lambda: list((project / ".plumbline").iterdir())
    yield "write the state", (project / ".plumbline" / "x").touch
    common = (path for prefix in ("plumbline", "prefect") for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"))
    for top in (project, *common):
        for folder, folders, names in os.walk(top):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                yield f"read {path.relative_to(project) if top == project else path}", path.read_bytes


def on_processes(pids: list[int]) -> Iterator[tuple[str, Action]]:
    """Yield (name, action) of each attack on a process."""
    for pid in pids:
        yield f"stop {pid}", lambda pid=pid: os.kill(pid, signal.SIGTERM)
        yield f"read the environment of {pid}", Path(f"/proc/{pid}/environ").read_bytes


def main() -> None:
    """Try everything; print what succeeded."""
    project, api, (s3, blob), pids = json.loads(sys.argv[1])
    done = []
    for name, action in (*on_servers(api, s3, blob), *on_files(Path(project)), *on_processes(pids)):
        try:
            action()
        except (OSError, urllib.error.HTTPError):
            continue
        done.append(name)
    sys.stdout.write(json.dumps(done))


if __name__ == "__main__":
    main()
