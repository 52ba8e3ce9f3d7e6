#!/usr/bin/python3
"""What this machine asks Azure with its own identity, by the standard library alone.

`secret` prints it, `notice` succeeds if Azure takes the machine back, and `off` deletes the machine from its scale set.
"""

import json
import os
import sys
from urllib.parse import quote
from urllib.request import Request, urlopen

METADATA = os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", "http://169.254.169.254") + "/metadata"
VAULT, RESOURCES = "https://vault.azure.net", os.environ.get("AZURE_RESOURCES", "https://management.azure.com")


def ask(url, token=None, body=None):
    """Return the answer to a request, by a token or of the metadata server."""
    headers = (
        {"Authorization": f"Bearer {token}", "Content-Type": "application/json"} if token else {"Metadata": "true"}
    )
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=data, headers=headers), timeout=20) as answer:
        return json.loads(answer.read() or b"{}")


def token_for(resource):
    """Return a token of the machine's identity."""
    query = f"api-version=2018-02-01&resource={quote(resource, safe='')}&client_id=${client_id}"
    return ask(f"{METADATA}/identity/oauth2/token?{query}")["access_token"]


def own():
    """Return what the metadata server says of the machine."""
    return ask(f"{METADATA}/instance/compute?api-version=2021-02-01")


if sys.argv[1] == "secret":
    print(ask("${secret}?api-version=7.4", token_for(VAULT))["value"])
elif sys.argv[1] == "notice":
    events = ask(f"{METADATA}/scheduledevents?api-version=2020-07-01")["Events"]
    name = own()["name"] if events else ""
    sys.exit(not any(event["EventType"] == "Preempt" and name in event["Resources"] for event in events))
else:
    group, _, number = own()["resourceId"].rpartition("/virtualMachines/")
    ask(
        f"{RESOURCES}{group}/delete?api-version=2024-07-01",
        token_for("https://management.azure.com"),
        {"instanceIds": [number]},
    )
