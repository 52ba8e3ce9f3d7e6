"""Documents and grants of the modules in `infra/`, with values in their places."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

INFRA = Path(__file__).resolve().parents[1] / "infra"
STORES = ("data", "outbox", "central")
PARAMETER = "arn:aws:ssm:us-east-1:123456789012:parameter/plumbline/prefect-auth"
GROUP = "arn:aws:autoscaling:us-east-1:123456789012:autoScalingGroup:*:autoScalingGroupName/plumbline-worker"
_READERS = {
    "Storage Blob Data Reader": {"Microsoft.Storage/storageAccounts/blobServices/containers/blobs/read"},
    "roles/storage.objectViewer": {"storage.objects.get", "storage.objects.list"},
}
"""Predefined roles, by what they allow on objects."""


def document(name: str, **values: str) -> Any:
    """Return a JSON template of a module; a place without a value keeps its name."""
    text = (INFRA / name).read_text("utf-8")
    return json.loads(re.sub(r"\$\{(\w+)\}", lambda place: values.get(place[1], place[1]), text))


def resources(cloud: str, kind: str) -> dict[str, dict[str, str]]:
    """Return the resources of a module by label, each with its plain arguments."""
    text = "".join(path.read_text("utf-8") for path in sorted((INFRA / cloud).glob("*.tf")))
    bodies = re.findall(rf'^resource "{kind}" "(\w+)" \{{\n(.*?)^\}}', text, re.MULTILINE | re.DOTALL)
    return {label: dict(re.findall(r"^  (\w+) += (.+)$", body, re.MULTILINE)) for label, body in bodies}


def aws_policy(identity: str, **values: str) -> Any:
    """Return the policy that the module gives to an identity's role."""
    (policy,) = [
        role["policy"] for role in resources("aws", "aws_iam_role_policy").values() if f".{identity}." in role["role"]
    ]
    match = re.search(r"/([\w-]+\.json)\"", policy)
    assert match is not None, policy
    return document(f"aws/{match[1]}", **{"password_parameter": PARAMETER, "machines": GROUP, **values})


def azure_actions(identity: str, store: str) -> set[str]:
    """Return the data actions that the module gives to an identity on a container."""
    allowed: set[str] = set()
    for grant in resources("azure", "azurerm_role_assignment").values():
        if f'this["{identity}"]' in grant["principal_id"] and _is_of(store, grant["scope"]):
            name = grant.get("role_definition_name", "").strip('"')
            allowed |= _READERS[name] if name else set(document("azure/worker-outbox-role.json")["DataActions"])
    return allowed


def google_grants(identity: str, store: str, **values: str) -> list[tuple[frozenset[str], str]]:
    """Return the permissions that the module gives to an identity on a bucket, each with its condition's prefix."""
    documents = {"writer": "worker-outbox", "replacer": "worker-checkpoint", "controller": "controller"}
    grants = []
    for label, grant in resources("gcp", "google_storage_bucket_iam_member").items():
        if f'this["{identity}"]' not in grant["member"] or not _is_of(store, grant["bucket"]):
            continue
        name, prefix = grant["role"].strip('"'), ""
        custom = re.search(r'custom_role\.this\["(\w+)"\]', name)
        allowed = (
            set(document(f"gcp/{documents[custom[1]]}-role.json")["includedPermissions"]) if custom else _READERS[name]
        )
        if label == "worker_replaces_checkpoints":
            expression = document("gcp/checkpoints-condition.json", **values)["expression"]
            match = re.fullmatch(
                r'resource\.name\.startsWith\("projects/_/buckets/[\w-]+/objects/([^"]+)"\)', expression
            )
            assert match is not None, expression
            prefix = match[1]
        grants.append((frozenset(allowed), prefix))
    return grants


def _is_of(store: str, scope: str) -> bool:
    return f'store["{store}"]' in scope or "store[each.key]" in scope
