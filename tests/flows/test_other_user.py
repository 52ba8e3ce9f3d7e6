"""A different user of the machine reaches the stack's loopback ports, and can start, read and stop nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from plumbline.localstack.process import find_by_mark
from tests.flows.local_stack import running_stack
from tests.flows.small_suite import small_suite

STRANGER = 65533
"""A user id without a name. `nobody` is PostgreSQL's user where root runs the stack."""
ATTACK = """
import json, os, signal, sys, urllib.error, urllib.request
state, api, endpoints, pids = json.loads(sys.argv[1])
done = []

def tried(what, action):
    try:
        action()
        done.append(what)
    except (OSError, urllib.error.HTTPError):
        pass

def ask(url, body=None, method=None, headers={}):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    return lambda: urllib.request.urlopen(request, timeout=20).read()

tried("read flow runs", ask(f"{api}/flow_runs/filter", {}))
tried("read blocks", ask(f"{api}/block_documents/filter", {"include_secrets": True}))
tried("start a flow run", ask(f"{api}/flow_runs/", {"flow_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12, "name": "x"}))
tried("make a flow", ask(f"{api}/flows/", {"name": "x"}))
guess = {"Authorization": "Basic cGx1bWJsaW5lOnBsdW1ibGluZQ=="}
tried("guess the login", ask(f"{api}/flow_runs/filter", {}, headers=guess))
s3, blob = endpoints
old = {"Authorization": "AWS4-HMAC-SHA256 Credential=plumbline/20260101/us-east-1/s3/aws4_request"}
for headers in ({}, old):
    tried("list buckets", ask(f"{s3}/", headers=headers))
    tried("write an object", ask(f"{s3}/outbox/x", {}, "PUT", headers))
    tried("empty the store", ask(f"{s3}/moto-api/reset", {}, "POST", headers))
tried("list containers", ask(f"{blob}/devstoreaccount1?comp=list"))
for folder, _, names in os.walk(state):
    for name in names:
        tried(f"read {folder}/{name}", lambda: open(os.path.join(folder, name), "rb").read())
tried("list the state", lambda: os.listdir(state))
tried("write the state", lambda: open(os.path.join(state, "x"), "w").close())
for pid in pids:
    tried(f"stop {pid}", lambda: os.kill(pid, signal.SIGTERM))
    tried(f"read the environment of {pid}", lambda: open(f"/proc/{pid}/environ", "rb").read())
print(json.dumps(done))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as a different user")
def test_a_different_user_can_start_read_and_stop_nothing(tmp_path: Path) -> None:
    # The parents are open, as those of a project in /home or /srv may be.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/") and "pytest" in str(folder):
            folder.chmod(0o755)
    state = tmp_path / "state"
    suite = small_suite(state, platforms=("aws", "azure"))
    with running_stack(state, suite=suite) as running:
        stack = running.stack
        settings = stack.environment()
        blob = settings["AZURE_STORAGE_CONNECTION_STRING"].partition("BlobEndpoint=")[2].partition("/devstore")[0]
        endpoints = (settings["AWS_ENDPOINT_URL"], blob)
        arguments = json.dumps([str(state), stack.api_url, endpoints, find_by_mark(stack.mark)])
        done = subprocess.run(
            ["/usr/bin/env", "-i", "/usr/bin/python3", "-c", ATTACK, arguments], capture_output=True, text=True,
            check=False, user=STRANGER, group=STRANGER, extra_groups=[], cwd="/", timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == []
